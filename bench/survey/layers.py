# SPDX-License-Identifier: MIT
"""Layers of the usual networks. A shape has the sizes of a batch: `batch` and `length` of texts,
`batch`, `height`, `width` and `frames` of images, `points` and `edges` of clouds and graphs."""
from types import SimpleNamespace as Shape

from network import Layer, Op

__all__ = ["Shape", "attention_graph", "block", "classifier", "convolution", "dense", "embedding",
           "experts", "lstm", "patches", "resnet", "text", "unet", "vision", "vocabulary"]


def embedding(width, words, item=2):
    return Layer([width * words * 4], lambda s: [Op(s.batch * s.length * width * item)])


def vocabulary(width, words, item=2):
    """Logits, and what the loss makes of them."""
    return Layer([width * words * 4], lambda s: [Op(s.batch * s.length * words * item),
                                                 Op(s.batch * s.length * words * 4)])


def classifier(width, classes):
    return Layer([width * classes * 4], lambda s: [Op(s.batch * classes * 4)])


def attention(tokens, shape, width, heads, is_fused):
    if is_fused:
        return [Op(tokens * width * 2, True, tokens * heads * 4)]
    scores = shape.batch * heads * shape.length ** 2
    return [Op(scores * 2), Op(scores * 2), Op(scores), Op(tokens * width * 2)]


def block(width, inner, heads, is_fused=True, has_dropout=True):
    """A block of a transformer, in 16 bits, its parameters in 32."""
    params = [size * 4 for size in (3 * width ** 2, 3 * width, width ** 2, width, width * inner,
                                    inner, inner * width, width, width, width, width, width)]

    def ops(s):
        tokens = s.batch * s.length
        whole = tokens * width * 2
        dropout = [Op(whole, False), Op(tokens * width)] if has_dropout else []
        return [Op(whole), Op(tokens * 8), Op(3 * whole),
                *attention(tokens, s, width, heads, is_fused), Op(whole, False), *dropout,
                Op(whole), Op(whole), Op(tokens * inner * 2), Op(tokens * inner * 2),
                Op(whole, False), Op(whole)]
    return Layer(params, ops)


def text(width, inner, heads, count, words, is_fused=True, has_dropout=True):
    return [embedding(width, words), *[block(width, inner, heads, is_fused, has_dropout)] * count]


def patches(width):
    return Layer([3 * 16 * 16 * width * 4, width * 4, 197 * width * 4],
                 lambda s: [Op(s.batch * 197 * width * 2)])


def vision(width, inner, heads, count):
    """A vision transformer; its shapes have a length of 197."""
    return [patches(width), *[block(width, inner, heads)] * count, classifier(width, 1000)]


def experts(width, inner, rng):
    """Attention, and eight experts that get shares of the tokens as they come."""
    params = [size * 4 for size in (3 * width ** 2, 3 * width, width ** 2, width)]
    params += [width * inner * 4] * 16

    def ops(s):
        tokens = s.batch * s.length
        whole, left, result = tokens * width * 2, 2 * tokens, []
        for i in range(8):
            share = left if i == 7 else min(left, max(1, int(rng.gauss(tokens / 4, tokens / 16))))
            left -= share
            share = max(share, 1)
            result += [Op(share * width * 2), Op(share * inner * 2), Op(share * inner * 2),
                       Op(share * width * 2)]
        return [Op(whole), Op(3 * whole), Op(whole), Op(tokens * 32), *result, Op(whole)]
    return Layer(params, ops)


def convolution(inputs, outputs, size, stride, workspace=0, item=2, depth=1, is_normed=True):
    """On an image that is smaller by the stride; the workspace in bytes a pixel."""
    params = [inputs * outputs * size ** 2 * depth * 4] + [outputs * 4] * (4 if is_normed else 1)

    def ops(s):
        pixels = s.batch * (s.height // stride) * (s.width // stride)
        out = pixels * getattr(s, "frames", 1) * outputs * item
        norm = [Op(out), Op(outputs * 4), Op(outputs * 4)] if is_normed else []
        return [Op(out, True, workspace * s.batch * s.height * s.width // stride ** 2), *norm]
    return Layer(params, ops)


def unet(width):
    layers, before = [], 3
    for stride in (1, 2, 4, 8, 16):
        channels = stride * width
        layers += [convolution(before, channels, 3, stride, 64),
                   convolution(channels, channels, 3, stride, 32)]
        before = channels
    for stride in (8, 4, 2, 1):
        channels = stride * width
        layers += [convolution(before + channels, channels, 3, stride, 64),
                   convolution(channels, channels, 3, stride, 32)]
        before = channels
    return [*layers, convolution(before, 21, 1, 1, is_normed=False)]


def resnet(workspace, item=2):
    layers, before = [convolution(3, 64, 7, 2, workspace, item)], 64
    for stride, channels, count in ((4, 256, 3), (8, 512, 4), (16, 1024, 6), (32, 2048, 3)):
        for _ in range(count):
            inner = channels // 4
            layers += [convolution(before, inner, 1, stride, workspace, item),
                       convolution(inner, inner, 3, stride, workspace, item),
                       convolution(inner, channels, 1, stride, workspace, item)]
            before = channels
    return [*layers, classifier(before, 1000)]


def dense(inputs, outputs):
    return Layer([inputs * outputs * 4, outputs * 4], lambda s: [Op(s.points * outputs * 4)] * 2)


def lstm(width):
    def ops(s):
        return [Op(s.batch * 4 * width * 4), Op(s.batch * width * 4),
                Op(s.batch * width * 4)] * s.length
    return Layer([4 * width * width * 4] * 2 + [4 * width * 4] * 2, ops)


def attention_graph(inputs, outputs, heads):
    return Layer([inputs * outputs * heads * 4, outputs * heads * 4, outputs * heads * 4],
                 lambda s: [Op(s.points * outputs * heads * 4), Op(s.edges * heads * 4),
                            Op(s.edges * heads * 4, True, s.edges * outputs * heads * 4),
                            Op(s.points * outputs * heads * 4)])
