/* SPDX-License-Identifier: MIT
 *
 * Conformance: address reservations. */
#include "base/bits.h"
#include "conform/conform.h"

static void alignment_is_kept(void) {
  const uint64_t granule = conform_granule();
  const uint64_t alignments[] = {0, 4096, granule, granule * 4, UINT64_C(1) << 28};
  for (size_t i = 0; i < sizeof(alignments) / sizeof(alignments[0]); i++) {
    tarn_ptr address = 0;
    REQUIRE_OK(tarni_port_reserve(conform_port, granule * 3, alignments[i], &address));
    CHECK(address != 0);
    CHECK_EQ(address % (alignments[i] > granule ? alignments[i] : granule), 0);
    CHECK_OK(tarni_port_unreserve(conform_port, address, granule * 3));
  }
}

static void reservations_are_disjoint(void) {
  enum { N = 24 };
  tarn_ptr addresses[N];
  uint64_t sizes[N];
  for (uint64_t i = 0; i < N; i++) {
    sizes[i] = conform_granule() * (1 + i * i % 7);
    REQUIRE_OK(tarni_port_reserve(conform_port, sizes[i], 0, &addresses[i]));
  }
  uint64_t n_overlaps = 0;
  for (int i = 0; i < N; i++) {
    for (int j = 0; j < i; j++) {
      n_overlaps +=
          addresses[i] < addresses[j] + sizes[j] && addresses[j] < addresses[i] + sizes[i];
    }
  }
  CHECK_EQ(n_overlaps, 0);
  for (int i = 0; i < N; i++) {
    CHECK_OK(tarni_port_unreserve(conform_port, addresses[i], sizes[i]));
  }
}

/* Address space costs nothing: several times any device's memory is reserved at once. */
static void huge_reservation(void) {
  const uint64_t size = UINT64_C(1) << 40;
  const uint64_t free_before = conform_free_bytes();
  tarn_ptr address;
  REQUIRE_OK(tarni_port_reserve(conform_port, size, 0, &address));
  CHECK(conform_free_bytes() + (32u << 20) >= free_before);
  CHECK(tarni_log2(address + size - 1) < conform_port->device.address_bits);
  CHECK_OK(tarni_port_unreserve(conform_port, address, size));
}

static void too_much_address_space(void) {
  tarn_ptr address = 77;
  const tarn_status status = tarni_port_reserve(conform_port, UINT64_C(1) << 60, 0, &address);
  CHECK(conform_fails(status));
  CHECK_EQ(address, 0);
}

static void release_needs_the_whole_range(void) {
  const uint64_t granule = conform_granule();
  tarn_ptr address;
  REQUIRE_OK(tarni_port_reserve(conform_port, granule * 4, 0, &address));
  CHECK(conform_fails(tarni_port_unreserve(conform_port, address, granule)));
  CHECK(conform_fails(tarni_port_unreserve(conform_port, address + granule, granule * 3)));
  conform_forgive();
  /* Still the caller's: a chunk can be mapped at its far end. */
  tarni_chunk chunk;
  REQUIRE_OK(tarni_port_create(conform_port, granule, &chunk));
  CHECK_OK(tarni_port_map(conform_port, address + granule * 3, granule, chunk));
  CHECK_OK(tarni_port_unmap(conform_port, address + granule * 3, granule));
  CHECK_OK(tarni_port_release(conform_port, chunk));
  CHECK_OK(tarni_port_unreserve(conform_port, address, granule * 4));
}

static void release_needs_it_unmapped(void) {
  conform_mapping mapping;
  REQUIRE_OK(conform_map(conform_granule(), &mapping));
  REQUIRE_OK(conform_device_pattern(mapping.address, mapping.size, 4));
  CHECK(conform_fails(tarni_port_unreserve(conform_port, mapping.address, mapping.size)));
  conform_forgive();
  CHECK_EQ(conform_device_differ(mapping.address, mapping.size, 4), 0);
  CHECK_OK(conform_unmap(&mapping));
}

static const test_case address_cases[] = {
    {"address: the alignment is kept", alignment_is_kept},
    {"address: reservations are disjoint", reservations_are_disjoint},
    {"address: a huge reservation costs no memory", huge_reservation},
    {"address: more than there is, is refused", too_much_address_space},
    {"address: release needs the whole range", release_needs_the_whole_range},
    {"address: release needs the range unmapped", release_needs_it_unmapped},
};
CONFORM_TABLE(address, address_cases)
