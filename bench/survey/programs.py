# SPDX-License-Identifier: MIT
"""Programs that are made up: they allocate as programs of their kinds do, which nobody has tuned an
allocator for. PROGRAMS has a function for each, which writes it to a trace."""
import random

from layers import (Shape, attention_graph, block, classifier, convolution, dense, embedding,
                    experts, lstm, resnet, text, unet, vision, vocabulary)
from network import Layer, Network, Op

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


# ---- Those that train, or infer, one network over batches of many shapes ----

def texts(batches, least, most):
    return lambda rng: Shape(batch=rng.choice(batches), length=rng.randint(least, most))


def images(batches, heights, widths, step=1, **more):
    return lambda rng: Shape(batch=rng.choice(batches), height=step * rng.randint(*heights),
                             width=step * rng.randint(*widths), **more)


def squares(batches, size=224):
    return images(batches, (size, size), (size, size), length=197)


def clouds(least, most):
    return lambda rng: Shape(points=rng.randint(least, most))


def text_bytes(s):
    return s.batch * s.length * 8


def image_bytes(s):
    return s.batch * 3 * s.height * s.width * 4


def training(name, layers, steps, shapes, inputs, gradients, **how):
    """gradients: bytes of the loss's gradient for a shape. how: see Network."""
    def run(trace):
        rng = random.Random(name)
        network = Network(trace, layers, how.get("has_moments", True))
        trace.alloc(8519680)  # for the library of matrix products
        for _ in range(steps):
            shape = shapes(rng)
            network.train(shape, inputs(shape), gradients(shape), how.get("is_at_once", True))
    PROGRAMS[name] = run


def language(name, layers, words, steps, shapes, **how):
    training(name, layers + [vocabulary(layers[0].params[0] // words // 4, words)], steps, shapes,
             text_bytes, lambda s: s.batch * s.length * words * 4, **how)


def inference(name, layers, count, shapes, inputs):
    def run(trace):
        rng = random.Random(name)
        network = Network(trace, layers)
        for _ in range(count):
            shape = shapes(rng)
            network.infer(shape, inputs(shape))
    PROGRAMS[name] = run


def of_classes(s):
    return s.batch * 4000


def of_labels(s):
    return s.batch * 8


def of_pixels(s):
    return s.batch * 21 * s.height * s.width * 4


language("gpt_medium", text(1024, 4096, 16, 24, 50257), 50257, 20, texts([4, 4, 2, 3], 200, 1024),
         is_at_once=False)
language("gpt_small", text(768, 3072, 12, 12, 50257), 50257, 25, texts([4], 128, 1024))
language("gpt_same_length", text(768, 3072, 12, 12, 50257), 50257, 12, texts([4], 1024, 1024))
language("t5_base", text(768, 3072, 12, 24, 32128, False), 32128, 25, texts([8, 8, 8, 6], 64, 320))
language("t5_small", text(512, 2048, 8, 12, 32128, False), 32128, 40, texts([8, 16], 40, 256))
language("llama_tiny", text(2048, 5632, 32, 8, 32000, True, False), 32000, 20,
         texts([1, 2], 200, 900))
language("lstm_large", [embedding(1500, 33278, 4), lstm(1500), lstm(1500)], 33278, 20,
         texts([64], 20, 50))
language("lstm_small", [embedding(650, 10000, 4), lstm(650), lstm(650)], 10000, 40,
         texts([80], 20, 70))
language("mixture", [embedding(768, 32000)] + [experts(768, 3072, random.Random(0))] * 8, 32000, 15,
         texts([8, 4], 128, 512))
training("bert_base_tuned", text(768, 3072, 12, 12, 30522, False) + [classifier(768, 2)], 40,
         texts([16], 32, 128), text_bytes, of_labels)
training("bert_large_tuned", text(1024, 4096, 16, 24, 30522, False) + [classifier(1024, 2)], 25,
         texts([8], 32, 160), text_bytes, of_labels)
training("bert_distilled", text(768, 3072, 12, 6, 30522, False) + [classifier(768, 2)], 60,
         texts([32], 16, 100), text_bytes, of_labels, is_at_once=False)
training("vit_large", vision(1024, 4096, 16, 24), 14, squares([32, 48, 64, 64, 64, 40]),
         image_bytes, of_classes)
training("vit_base", vision(768, 3072, 12, 12), 30, squares(range(8, 41)), image_bytes, of_classes)
training("vit_small", vision(384, 1536, 6, 12), 30, squares([64, 64, 48]), image_bytes, of_classes)
training("unet", unet(64), 25, images([4], (14, 36), (14, 36), 16), image_bytes, of_pixels)
training("unet_small", unet(32), 30, images([8], (8, 20), (8, 20), 16), image_bytes, of_pixels)
training("resnet", resnet(16), 25, images([16], (4, 10), (4, 10), 32), image_bytes, of_classes,
         has_moments=False)
training("resnet_32_bits", resnet(32, 4), 20, squares([8, 16, 12]), image_bytes, of_classes,
         is_at_once=False)
training("speech", [convolution(1, 512, 3, 4, is_normed=False)]
         + [block(512, 2048, 8, False)] * 17 + [vocabulary(512, 5000)], 25,
         lambda rng: (lambda n: Shape(batch=max(2, 6000 // n), length=n, height=4 * n, width=20))(
             rng.randint(100, 420)),
         lambda s: s.batch * s.length * 1280, lambda s: s.batch * s.length * 20000)
training("video", [convolution(3, 64, 3, 2, 8, depth=3), convolution(64, 128, 3, 4, 8, depth=3),
                   convolution(128, 128, 3, 4, 8, depth=3), convolution(128, 256, 3, 8, 8, depth=3),
                   convolution(256, 512, 3, 16, 8, depth=3), convolution(512, 512, 3, 16, depth=3)],
         20, lambda rng: images([4, 8], (7, 14), (7, 16), 16, frames=rng.choice([8, 16, 24, 32]))(
             rng),
         lambda s: image_bytes(s) * s.frames, lambda s: 512)
training("points", [dense(3, 64), dense(64, 64),
                    Layer([], lambda s: [Op(s.points * 128, True, s.points * 4000),
                                         Op(s.points * 4096)]),
                    dense(64, 128), dense(128, 1024), dense(1024, 512), dense(512, 256),
                    dense(256, 13)], 40, clouds(20000, 180000),
         lambda s: s.points * 24, lambda s: s.points * 52)
training("rays", [dense(63, 256)] + [dense(256, 256)] * 7 + [dense(256, 4)], 60,
         clouds(60000, 200000), lambda s: s.points * 24, lambda s: s.points * 16)
training("graph", [attention_graph(128, 64, 8), attention_graph(512, 64, 8),
                   attention_graph(512, 40, 1)], 50,
         lambda rng: (lambda n: Shape(points=n, edges=n * rng.randint(5, 15)))(
             rng.randint(20000, 80000)),
         lambda s: s.points * 512, lambda s: s.points * 160)
inference("segment", unet(96), 150, images([1], (20, 90), (20, 90), 16), image_bytes)
inference("resnet_serves", resnet(64), 200, images(range(1, 33), (5, 16), (5, 16), 32), image_bytes)
inference("bert_large_serves", text(1024, 4096, 16, 24, 30522, False), 200,
          texts(range(1, 33), 16, 384), text_bytes)
inference("roberta_serves", text(768, 3072, 12, 12, 50265, False), 250,
          texts([8, 16, 32, 64], 10, 256), text_bytes)
inference("protein_serves", text(1280, 5120, 20, 33, 33, False), 120, texts(range(1, 9), 30, 700),
          text_bytes)
inference("vit_serves", vision(1024, 4096, 16, 24), 120, squares(range(1, 65)), image_bytes)


# ---- Others ----

@program
def diffusion(trace):
    rng = random.Random(6)
    network = Network(trace, [Layer([size // 2 for size in layer.params], layer.ops)
                              for layer in unet(320)])
    decoder = Network(trace, [convolution(4, 128, 3, 2, 16), convolution(128, 128, 3, 1, 16)])
    for _ in range(25):
        height, width = rng.choice([(64, 64), (96, 64), (64, 96), (80, 112), (128, 96)])
        batch = rng.choice([2, 4, 8])
        latent_bytes = batch * 4 * height * width * 2
        latent = trace.alloc(latent_bytes)
        for _ in range(6):
            network.infer(Shape(batch=batch, height=height, width=width), latent_bytes)
        image = trace.alloc(batch * 3 * height * width * 256)
        decoder.infer(Shape(batch=batch, height=8 * height, width=8 * width), latent_bytes)
        trace.free(image, latent)


@program
def adversarial(trace):
    rng = random.Random(9)
    maker = Network(trace, [convolution(100, 1024, 4, 32), convolution(1024, 512, 4, 16, 16),
                            convolution(512, 256, 4, 8, 16), convolution(256, 128, 4, 4, 16),
                            convolution(128, 64, 4, 2, 16),
                            convolution(64, 3, 4, 1, is_normed=False)])
    critic = Network(trace, [convolution(3, 64, 4, 2, 16), convolution(64, 128, 4, 4, 16),
                             convolution(128, 256, 4, 8, 16), convolution(256, 512, 4, 16, 16),
                             convolution(512, 1, 4, 32, is_normed=False)])
    for _ in range(40):
        shape = squares([64, 128, 96], 128)(rng)
        batch = trace.alloc(image_bytes(shape)), trace.alloc(shape.batch * 400)
        critic.backward(critic.forward(shape), 512)
        made = maker.forward(shape)
        critic.backward(critic.forward(shape), 512)
        critic.step()
        critic.backward(critic.forward(shape), 512)
        maker.backward(made, image_bytes(shape) // 2)
        maker.step()
        trace.free(*batch)


@program
def contrastive(trace):
    rng = random.Random(15)
    sees = Network(trace, [convolution(3, 64, 7, 2, 16), convolution(64, 256, 3, 4, 16),
                           convolution(256, 512, 3, 8, 16), convolution(512, 1024, 3, 16, 16),
                           convolution(1024, 2048, 3, 32, 16)])
    reads = Network(trace, text(512, 2048, 8, 12, 49408))
    for _ in range(15):
        count = rng.choice([256, 256, 192, 128])
        shape = Shape(batch=count, height=224, width=224, length=77)
        batch = trace.alloc(image_bytes(shape)), trace.alloc(text_bytes(shape))
        seen, read = sees.forward(shape), reads.forward(shape)
        scores = trace.alloc(count ** 2 * 4), trace.alloc(count ** 2 * 4)
        sees.backward(seen, count * 2048 * 98)
        reads.backward(read, count * 77 * 1024)
        trace.free(*scores, *batch)
        sees.step()
        reads.step()


@program
def policy(trace):
    network = Network(trace, [convolution(4, 32, 8, 4, 8, 4, is_normed=False),
                              convolution(32, 64, 4, 8, 8, 4, is_normed=False),
                              convolution(64, 64, 3, 8, 0, 4, is_normed=False),
                              classifier(3136 * 2, 512)])
    for _ in range(12):
        seen = [trace.alloc(size * 128 * 64) for size in (4 * 84 * 84, 8, 4, 4)]
        for _ in range(32):
            network.infer(Shape(batch=64, height=84, width=84), 64 * 16 * 84 * 84)
        worth = trace.alloc(128 * 64 * 4)
        for _ in range(4):
            order = trace.alloc(128 * 64 * 8)
            for _ in range(8):
                network.train(Shape(batch=1024, height=84, width=84), 1024 * 16 * 84 * 84, 73728)
            trace.free(order)
        trace.free(worth, *seen)


@program
def low_rank(trace):
    """A large network that stays as it is, and small ones beside its layers that learn."""
    rng = random.Random(13)
    width, inner = 4096, 11008
    for _ in range(32):
        for size in [width ** 2] * 4 + [width * inner] * 3 + [width] * 2:
            trace.alloc(size * 2)
    trace.alloc(32000 * width * 2)
    trace.alloc(32000 * width * 2)

    def ops(s):
        tokens = s.batch * s.length
        whole, wide = tokens * width * 2, tokens * inner * 2
        return [Op(whole)] * 5 + [Op(tokens * 32)] * 2 + [
            Op(whole, True, tokens * 128), Op(whole, False), Op(whole), Op(wide), Op(wide),
            Op(wide), Op(whole)]
    layers = [Layer([width * 64] * 4, ops)] * 32
    layers.append(Layer([], lambda s: [Op(s.batch * s.length * 64000),
                                       Op(s.batch * s.length * 128000)]))
    network = Network(trace, layers)
    for _ in range(14):
        shape = texts([1, 2], 150, 700)(rng)
        network.train(shape, text_bytes(shape), shape.batch * shape.length * 128000)


@program
def ensemble(trace):
    """Networks that come, serve, and go."""
    rng = random.Random(14)
    for _ in range(10):
        width, inner, count = rng.choice([(768, 3072, 12), (1024, 4096, 24), (1280, 5120, 32),
                                          (512, 2048, 8)])
        layers = text(width, inner, 12, count, 30522, False)
        loaded = [trace.alloc(size) for layer in layers[1:] for size in layer.params]
        network = Network(trace, layers)
        trace.free(*loaded)
        for _ in range(6):
            shape = texts([8, 16, 32], 32, 256)(rng)
            network.infer(shape, text_bytes(shape))
        network.drop()


@program
def recommend(trace):
    rng = random.Random(8)
    for _ in range(26):
        trace.alloc(rng.choice([1e3, 1e4, 1e5, 1e6, 3e6]) * rng.uniform(0.3, 1) * 256)
    network = Network(trace, [dense(13, 512), dense(512, 256), dense(256, 64),
                              Layer([], lambda s: [Op(s.points * 256)] * 26
                                    + [Op(s.points * 27 * 256), Op(s.points * 27 * 108)]),
                              dense(415, 1024), dense(1024, 1024), dense(1024, 512),
                              dense(512, 256), dense(256, 1)], False)
    for _ in range(60):
        count = rng.choice([16384, 32768, 65536, 49152])
        network.train(Shape(points=count), count * 156, count * 4)


@program
def solver(trace):
    """Grids of many sizes, each with coarser ones."""
    rng = random.Random(16)
    for _ in range(14):
        grid = rng.randint(80, 300) ** 3 * 8
        blocks = [trace.alloc(size) for size in (grid * 7 // 2, grid, grid, grid, grid, grid, grid)]
        coarse = grid // 8
        while coarse > 12500:
            blocks += [trace.alloc(size) for size in (4 * coarse, coarse, coarse)]
            coarse //= 8
        for _ in range(8):
            residual = trace.alloc(grid)
            trace.touch(grid)
            trace.touch(512)
            trace.free(residual)
        trace.free(*blocks)


@program
def cache_grows(trace):
    """Token by token, keys and values of all before are copied into blocks that are longer."""
    rng = random.Random(19)
    width, count = 2048, 24
    for _ in range(count):
        for size in (3 * width, width, 4 * width, 4 * width):
            trace.alloc(width * size * 2)
    for _ in range(5):
        batch, length = rng.choice([4, 8, 16]), rng.randint(50, 400)
        row = batch * width * 2
        cache = []
        for _ in range(count):
            work = [trace.alloc(row * length * size) for size in (1, 3, 1, 4, 1)]
            cache.append([trace.alloc(row * length), trace.alloc(row * length)])
            trace.free(*work)
        for length in range(length + 1, length + rng.randint(60, 160)):
            for pair in cache:
                work = [trace.alloc(row * size) for size in (1, 3, 1)]
                for i in range(2):
                    before, pair[i] = pair[i], trace.alloc(row * length)
                    trace.free(before)
                trace.touch(batch * 64 * length)
                trace.free(*work)
        trace.free(*(half for pair in cache for half in pair))


@program
def beams(trace):
    """A translator that keeps five beams, and sorts them after each word."""
    rng = random.Random(22)
    width, count, words = 1024, 12, 50000
    for _ in range(2 * count):
        for size in (3 * width, width, 4 * width, 4 * width):
            trace.alloc(width * size * 2)
    trace.alloc(width * words * 2)
    for _ in range(12):
        batch, length = rng.choice([4, 8]), rng.randint(20, 300)
        row = batch * width * 2
        encoded = trace.alloc(row * length)
        for _ in range(count):
            work = [trace.alloc(row * length * size) for size in (1, 3, 1, 4, 1)]
            trace.touch(batch * 32 * length ** 2)
            trace.free(*work)
        crossed = [trace.alloc(5 * row * length) for _ in range(2 * count)]
        cache = [trace.alloc(5 * row) for _ in range(2 * count)]
        for word in range(1, rng.randint(20, 90)):
            for _ in range(2):  # a word more, and sorted
                for i, before in enumerate(cache):
                    cache[i] = trace.alloc(5 * row * word)
                    trace.free(before)
            trace.free(trace.alloc(batch * 20 * words), trace.alloc(batch * 20 * words))
        trace.free(encoded, *crossed, *cache)


@program
def voices(trace):
    rng = random.Random(23)
    for _ in range(60):
        trace.alloc(rng.randint(1, 40) * 100000)
    for _ in range(120):
        frames = rng.randint(50, 800)
        sound = trace.alloc(frames * 320)
        for channels, samples in ((256, 8), (128, 64), (64, 128), (32, 256)):
            size = frames * samples * channels * 4
            before, sound = sound, trace.alloc(size)
            trace.free(before)
            for _ in range(3):
                total = None
                for _ in range(3):
                    part, result = trace.alloc(size), trace.alloc(size)
                    trace.free(part, *([total] if total else []))
                    total = result
                trace.free(sound)
                sound = total
        trace.free(sound)
