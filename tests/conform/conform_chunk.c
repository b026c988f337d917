/* SPDX-License-Identifier: MIT
 *
 * Conformance: chunks, mappings, access, export and import. */
#include <fcntl.h>
#include <unistd.h>

#include "conform/conform.h"

static void create_map_use(void) {
  conform_mapping mapping;
  REQUIRE_OK(conform_map(conform_granule() * 2, &mapping));
  CHECK(mapping.chunk != 0);
  CHECK_OK(conform_device_pattern(mapping.address, mapping.size, 1));
  CHECK_EQ(conform_device_differ(mapping.address, mapping.size, 1), 0);
  CHECK_OK(tarni_port_fill_sync(conform_port, mapping.address, 0x5a, mapping.size));
  CHECK_EQ(conform_device_differ_value(mapping.address, mapping.size, 0x5a), 0);
  CHECK_OK(conform_unmap(&mapping));
}

/* One reservation, several chunks side by side: the whole is one range to a copy. */
static void neighbours_are_one_range(void) {
  enum { N = 3 };
  const uint64_t granule = conform_granule();
  tarn_ptr address;
  tarni_chunk chunks[N];
  REQUIRE_OK(tarni_port_reserve(conform_port, granule * N, 0, &address));
  for (uint64_t i = 0; i < N; i++) {
    REQUIRE_OK(tarni_port_create(conform_port, granule, &chunks[i]));
    REQUIRE_OK(tarni_port_map(conform_port, address + i * granule, granule, chunks[i]));
  }
  CHECK(chunks[0] != chunks[1] && chunks[1] != chunks[2] && chunks[0] != chunks[2]);
  CHECK_OK(tarni_port_access(conform_port, address, granule * N));
  CHECK_OK(conform_device_pattern(address, granule * N, 2));
  CHECK_EQ(conform_device_differ(address, granule * N, 2), 0);
  CHECK_OK(tarni_port_fill_sync(conform_port, address + granule - 100, 0x11, 200));
  CHECK_EQ(conform_device_differ(address, granule - 100, 2), 0);
  CHECK_EQ(conform_device_differ_value(address + granule - 100, 200, 0x11), 0);
  for (uint64_t i = 0; i < N; i++) {
    CHECK_OK(tarni_port_unmap(conform_port, address + i * granule, granule));
    CHECK_OK(tarni_port_release(conform_port, chunks[i]));
  }
  CHECK_OK(tarni_port_unreserve(conform_port, address, granule * N));
}

static void two_mappings_share_content(void) {
  const uint64_t size = conform_granule();
  conform_mapping first;
  tarn_ptr second;
  REQUIRE_OK(conform_map(size, &first));
  REQUIRE_OK(tarni_port_reserve(conform_port, size, 0, &second));
  CHECK_OK(tarni_port_map(conform_port, second, size, first.chunk));
  CHECK_OK(tarni_port_access(conform_port, second, size));
  CHECK_OK(conform_device_pattern(first.address, size, 3));
  CHECK_EQ(conform_device_differ(second, size, 3), 0);
  CHECK_OK(conform_device_pattern(second, size, 4));
  CHECK_EQ(conform_device_differ(first.address, size, 4), 0);
  /* The one that goes takes nothing along. */
  CHECK_OK(tarni_port_unmap(conform_port, second, size));
  CHECK_EQ(conform_device_differ(first.address, size, 4), 0);
  CHECK_OK(tarni_port_unreserve(conform_port, second, size));
  CHECK_OK(conform_unmap(&first));
}

/* Mapped at a new place while work at the old one is pending, and used there in stream order. */
static void moved_without_waiting(void) {
  const uint64_t size = conform_granule();
  conform_mapping old;
  tarn_ptr new_address;
  tarn_stream stream;
  REQUIRE_OK(conform_map(size, &old));
  REQUIRE_OK(tarni_port_reserve(conform_port, size, 0, &new_address));
  REQUIRE_OK(tarni_port_stream_create(conform_port, &stream));
  conform_gate *gate = conform_gate_close(stream);
  CHECK_OK(tarni_port_fill(conform_port, old.address, 0x21, size, stream));
  CHECK_OK(tarni_port_map(conform_port, new_address, size, old.chunk));
  CHECK_OK(tarni_port_access(conform_port, new_address, size));
  CHECK_OK(tarni_port_fill(conform_port, new_address, 0x22, size / 2, stream));
  CHECK_STATUS(tarni_port_stream_query(conform_port, stream), TARN_NOT_READY);
  CHECK(conform_gate_open(gate));
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  CHECK_OK(tarni_port_unmap(conform_port, old.address, size));
  CHECK_EQ(conform_device_differ_value(new_address, size / 2, 0x22), 0);
  CHECK_EQ(conform_device_differ_value(new_address + size / 2, size / 2, 0x21), 0);
  CHECK_OK(tarni_port_unmap(conform_port, new_address, size));
  CHECK_OK(tarni_port_release(conform_port, old.chunk));
  CHECK_OK(tarni_port_unreserve(conform_port, old.address, size));
  CHECK_OK(tarni_port_unreserve(conform_port, new_address, size));
  CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
}

static void mapped_and_unmapped_whole(void) {
  const uint64_t granule = conform_granule();
  conform_mapping mapping;
  tarn_ptr elsewhere;
  REQUIRE_OK(conform_map(granule * 2, &mapping));
  REQUIRE_OK(conform_device_pattern(mapping.address, mapping.size, 5));
  REQUIRE_OK(tarni_port_reserve(conform_port, granule * 4, 0, &elsewhere));
  CHECK(conform_fails(tarni_port_unmap(conform_port, mapping.address, granule)));
  CHECK(conform_fails(tarni_port_unmap(conform_port, mapping.address + granule, granule)));
  CHECK(conform_fails(tarni_port_map(conform_port, elsewhere, granule, mapping.chunk)));
  CHECK(conform_fails(tarni_port_map(conform_port, elsewhere, granule * 4, mapping.chunk)));
  conform_forgive();
  CHECK_EQ(conform_device_differ(mapping.address, mapping.size, 5), 0);
  /* The refused mappings left nothing behind. */
  CHECK_OK(tarni_port_map(conform_port, elsewhere, granule * 2, mapping.chunk));
  CHECK_OK(tarni_port_unmap(conform_port, elsewhere, granule * 2));
  CHECK_OK(tarni_port_unreserve(conform_port, elsewhere, granule * 4));
  CHECK_OK(conform_unmap(&mapping));
}

static void mapped_once_at_an_address(void) {
  const uint64_t granule = conform_granule();
  conform_mapping mapping;
  tarni_chunk other;
  REQUIRE_OK(conform_map(granule, &mapping));
  REQUIRE_OK(conform_device_pattern(mapping.address, granule, 6));
  REQUIRE_OK(tarni_port_create(conform_port, granule, &other));
  CHECK(conform_fails(tarni_port_map(conform_port, mapping.address, granule, other)));
  conform_forgive();
  CHECK_EQ(conform_device_differ(mapping.address, granule, 6), 0);
  CHECK_OK(tarni_port_release(conform_port, other));
  CHECK_OK(conform_unmap(&mapping));
}

static void mapped_inside_a_reservation(void) {
  const uint64_t granule = conform_granule();
  tarn_ptr address;
  tarni_chunk chunk;
  REQUIRE_OK(tarni_port_reserve(conform_port, granule, 0, &address));
  REQUIRE_OK(tarni_port_create(conform_port, granule * 2, &chunk));
  CHECK(conform_fails(tarni_port_map(conform_port, address, granule * 2, chunk)));
  conform_forgive();
  CHECK_OK(tarni_port_release(conform_port, chunk));
  CHECK_OK(tarni_port_unreserve(conform_port, address, granule));
}

static void released_while_mapped(void) {
  conform_mapping mapping;
  REQUIRE_OK(conform_map(conform_granule(), &mapping));
  REQUIRE_OK(conform_device_pattern(mapping.address, mapping.size, 7));
  const uint64_t free_before = conform_free_bytes();
  CHECK_OK(tarni_port_release(conform_port, mapping.chunk));
  CHECK_EQ(conform_free_bytes(), free_before);
  CHECK_EQ(conform_device_differ(mapping.address, mapping.size, 7), 0);
  CHECK_OK(conform_device_pattern(mapping.address, mapping.size, 8));
  CHECK_EQ(conform_device_differ(mapping.address, mapping.size, 8), 0);
  CHECK_OK(tarni_port_unmap(conform_port, mapping.address, mapping.size));
  CHECK(conform_free_bytes() >= free_before + mapping.size);
  CHECK_OK(tarni_port_unreserve(conform_port, mapping.address, mapping.size));
}

/* An address is only an address: what is mapped there next is a new content. */
static void address_is_used_again(void) {
  const uint64_t size = conform_granule();
  conform_mapping mapping;
  tarni_chunk other;
  REQUIRE_OK(conform_map(size, &mapping));
  REQUIRE_OK(conform_device_pattern(mapping.address, size, 9));
  REQUIRE_OK(tarni_port_create(conform_port, size, &other));
  CHECK_OK(tarni_port_unmap(conform_port, mapping.address, size));
  CHECK_OK(tarni_port_map(conform_port, mapping.address, size, other));
  CHECK_OK(tarni_port_access(conform_port, mapping.address, size));
  CHECK_OK(conform_device_pattern(mapping.address, size, 10));
  CHECK_OK(tarni_port_unmap(conform_port, mapping.address, size));
  CHECK_OK(tarni_port_map(conform_port, mapping.address, size, mapping.chunk));
  CHECK_OK(tarni_port_access(conform_port, mapping.address, size));
  CHECK_EQ(conform_device_differ(mapping.address, size, 9), 0);
  CHECK_OK(tarni_port_release(conform_port, other));
  CHECK_OK(conform_unmap(&mapping));
}

static void more_than_there_is(void) {
  const uint64_t granule = conform_granule();
  const uint64_t total = conform_port->device.total_bytes;
  const uint64_t size = (total / granule + 1) * granule;
  const uint64_t free_before = conform_free_bytes();
  tarni_chunk chunk = 77;
  CHECK_STATUS(tarni_port_create(conform_port, size, &chunk), TARN_DEVICE_MEMORY);
  CHECK_EQ(chunk, 0);
  tarn_error error = {.size = sizeof(error)};
  CHECK_STATUS(tarn_last_error(&error), TARN_DEVICE_MEMORY);
  CHECK_EQ(error.requested_bytes, size);
  CHECK(error.driver_code != 0 && error.driver_name[0] != '\0');
  CHECK_EQ(conform_free_bytes(), free_before);
  CHECK_OK(tarni_port_create(conform_port, granule, &chunk));
  CHECK_OK(tarni_port_release(conform_port, chunk));
}

static void none_waits_for_the_gpu(void) {
  const uint64_t size = conform_granule();
  conform_mapping busy, mapping;
  tarn_stream stream;
  REQUIRE_OK(tarni_port_stream_create(conform_port, &stream));
  REQUIRE_OK(conform_map(size, &busy));
  conform_gate *gate = conform_gate_close(stream);
  CHECK_OK(tarni_port_fill(conform_port, busy.address, 1, size, stream));
  CHECK_OK(conform_map(size, &mapping));
  CHECK_OK(conform_unmap(&mapping));
  CHECK_STATUS(tarni_port_stream_query(conform_port, stream), TARN_NOT_READY);
  CHECK(!conform_gate_is_open(gate));
  CHECK(conform_gate_open(gate));
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  CHECK_EQ(conform_device_differ_value(busy.address, size, 1), 0);
  CHECK_OK(conform_unmap(&busy));
  CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
}

static void exported_and_imported(void) {
  const uint64_t size = conform_granule();
  conform_mapping mapping;
  int descriptor = 77;
  tarni_chunk imported = 0;
  tarn_ptr address;
  REQUIRE_OK(conform_map(size, &mapping));
  REQUIRE_OK(conform_device_pattern(mapping.address, size, 11));
  REQUIRE_OK(tarni_port_export(conform_port, mapping.chunk, &descriptor));
  CHECK(descriptor >= 0);
  REQUIRE_OK(tarni_port_import(conform_port, descriptor, &imported));
  CHECK(imported != 0);
  CHECK(close(descriptor) == 0);
  REQUIRE_OK(tarni_port_reserve(conform_port, size, 0, &address));
  CHECK_OK(tarni_port_map(conform_port, address, size, imported));
  CHECK_OK(tarni_port_access(conform_port, address, size));
  CHECK_EQ(conform_device_differ(address, size, 11), 0);
  CHECK_OK(conform_device_pattern(address, size, 12));
  CHECK_EQ(conform_device_differ(mapping.address, size, 12), 0);
  /* The exporter's side may go first. */
  CHECK_OK(conform_unmap(&mapping));
  CHECK_EQ(conform_device_differ(address, size, 12), 0);
  CHECK_OK(tarni_port_unmap(conform_port, address, size));
  CHECK_OK(tarni_port_release(conform_port, imported));
  CHECK_OK(tarni_port_unreserve(conform_port, address, size));
}

static void junk_is_not_imported(void) {
  const int descriptor = open("/dev/null", O_RDWR | O_CLOEXEC);
  tarni_chunk chunk = 77;
  CHECK(descriptor >= 0);
  CHECK(conform_fails(tarni_port_import(conform_port, descriptor, &chunk)));
  CHECK_EQ(chunk, 0);
  chunk = 77;
  CHECK_STATUS(tarni_port_import(conform_port, -1, &chunk), TARN_INVALID);
  CHECK_EQ(chunk, 0);
  CHECK(close(descriptor) == 0);
  conform_forgive();
}

static const test_case chunk_cases[] = {
    {"chunk: created, mapped and used", create_map_use},
    {"chunk: neighbours are one range", neighbours_are_one_range},
    {"chunk: two mappings share the content", two_mappings_share_content},
    {"chunk: moved without waiting", moved_without_waiting},
    {"chunk: mapped and unmapped whole", mapped_and_unmapped_whole},
    {"chunk: no mapping over another", mapped_once_at_an_address},
    {"chunk: mapped inside a reservation only", mapped_inside_a_reservation},
    {"chunk: released while mapped", released_while_mapped},
    {"chunk: an address is used again", address_is_used_again},
    {"chunk: more than there is", more_than_there_is},
    {"chunk: no call waits for the GPU", none_waits_for_the_gpu},
    {"chunk: exported and imported", exported_and_imported},
    {"chunk: junk is not imported", junk_is_not_imported},
};
CONFORM_TABLE(chunk, chunk_cases)
