# SPDX-License-Identifier: MIT
"""Networks, as an allocator sees them: what training and inference ask for, tensor by tensor, in
the order in which PyTorch would. Nothing is computed."""
from collections import namedtuple

# One operation: bytes of its result, whether that is kept for the backward pass, and bytes that it
# needs while it runs.
Op = namedtuple("Op", "out is_saved workspace", defaults=(True, 0))
# Bytes of each parameter, and the operations for a shape.
Layer = namedtuple("Layer", "params ops")


class Network:
    def __init__(self, trace, layers, has_moments=True):
        self._trace = trace
        self._layers = layers
        self._sizes = [size for layer in layers for size in layer.params]
        self._params = [trace.alloc(size) for size in self._sizes]
        self._grads = [None] * len(self._sizes)
        self._moments = None if has_moments else []

    def _run(self, op, before):
        """The result of an operation; the one before it goes, unless it is kept."""
        workspace = self._trace.alloc(op.workspace) if op.workspace else None
        result = self._trace.alloc(op.out)
        self._trace.free(*(block for block in (workspace, before) if block is not None))
        return result

    def infer(self, shape, input_bytes):
        first = result = self._trace.alloc(input_bytes)
        for layer in self._layers:
            for op in layer.ops(shape):
                result = self._run(op, result if result != first else None)
        self._trace.free(*{first, result})

    def forward(self, shape):
        """Returns what each layer keeps: its saved results, and its last one."""
        tape = []
        for layer in self._layers:
            kept, loose = [], None
            for op in layer.ops(shape):
                result = self._run(op, loose)
                loose = None if op.is_saved else result
                if op.is_saved:
                    kept.append((result, op.out))
            if loose is not None:
                kept.append((loose, op.out))
            tape.append(kept)
        return tape

    def _accumulate(self, index):
        gradient = self._trace.alloc(self._sizes[index])
        if self._grads[index] is None:
            self._grads[index] = gradient
        else:
            self._trace.free(gradient)

    def backward(self, tape, gradient_bytes):
        gradient = self._trace.alloc(gradient_bytes)
        end = len(self._sizes)
        for kept, layer in zip(reversed(tape), reversed(self._layers)):
            begin = end - len(layer.params)
            for i, (block, size) in enumerate(reversed(kept)):
                before, gradient = gradient, self._trace.alloc(size)
                self._trace.free(before)
                if i < len(layer.params):
                    self._accumulate(end - 1 - i)
                self._trace.free(block)
            for index in range(begin, end):
                if self._grads[index] is None:
                    self._accumulate(index)
            end = begin
        self._trace.free(gradient)

    def step(self, is_at_once=True):
        """The optimizer: its moments are made at the first step, its temporaries at each."""
        if self._moments is None:
            self._moments = [self._trace.alloc(size) for size in self._sizes for _ in range(2)]
        if is_at_once:
            self._trace.free(*[self._trace.alloc(size) for size in self._sizes])
        else:
            for size in self._sizes:
                self._trace.free(self._trace.alloc(size), self._trace.alloc(size))
        self._trace.free(*(gradient for gradient in self._grads if gradient is not None))
        self._grads = [None] * len(self._sizes)

    def train(self, shape, input_bytes, gradient_bytes, is_at_once=True):
        """A step of training."""
        batch = self._trace.alloc(input_bytes), self._trace.alloc(max(512, input_bytes // 256))
        tape = self.forward(shape)
        loss = self._trace.alloc(512)
        self.backward(tape, gradient_bytes)
        self._trace.free(loss, *batch)
        self.step(is_at_once)

    def drop(self):
        self._trace.free(*self._params, *(self._moments or []))
