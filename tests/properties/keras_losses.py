"""The losses of `torch_losses`, written in TensorFlow with the same names and verdicts.

Only what Keras makes of a loss differs from torch, and a few losses that only torch can express.
"""

import tensorflow as tf

EQUAL, NAMED, OWN = "equal", "named", "own"
CLASSES, WORDS, WIDTH = 4, 8, 6


def dense(size):
    initial = tf.keras.initializers.RandomNormal(stddev=0.6, seed=size)
    return tf.keras.layers.Dense(size, kernel_initializer=initial, bias_initializer=initial)


PARTS = {
    "words": lambda: tf.keras.layers.Embedding(
        WORDS, WIDTH, tf.keras.initializers.RandomNormal(stddev=0.6, seed=1)
    ),
    "batch_norm": tf.keras.layers.BatchNormalization,
    "layer_norm": tf.keras.layers.LayerNormalization,
    "dropout": lambda: tf.keras.layers.Dropout(0.5),
    "noise": lambda: tf.keras.layers.GaussianNoise(0.1),
    "gate": lambda: dense(2),
}


class Net(tf.keras.Model):
    """A small network.

    Args:
        part: Another layer that a loss uses.
    """

    def __init__(self, part=None):
        super().__init__()
        self.first, self.last = dense(5), dense(CLASSES)
        self.first.build([None, WIDTH])
        self.last.build([None, 5])
        if part is not None:
            self.part = PARTS[part]()
            self.part.build([None, WIDTH if part in ("words", "noise", "gate") else 5])

    def hidden(self, x):
        return tf.tanh(self.first(x))

    def scores(self, x):
        return self.last(self.hidden(x))

    def call(self, x):
        return self.scores(x)


LOSSES = {}


def loss(verdict, part=None):
    def add(function):
        LOSSES[function.__name__] = (verdict, function, part)
        return function

    return add


def one_hot(y, like):
    return tf.one_hot(y, CLASSES, dtype=like.dtype)


def cross_entropies(y, scores):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores)


def rows_of(net, x, y):
    return cross_entropies(y, net.scores(x))


def mean(values):
    return tf.reduce_mean(values)


def total(values, axis=None):
    return tf.reduce_sum(values, axis)


def deviation(values):
    """The unbiased standard deviation over rows."""
    n = tf.cast(tf.shape(values)[0], values.dtype)
    return tf.sqrt(total((values - tf.reduce_mean(values, 0)) ** 2, 0) / (n - 1))


def normalized(values):
    return tf.math.l2_normalize(values, 1)


def with_gradient(value, gradient):
    @tf.custom_gradient
    def called(same):
        return tf.identity(same), gradient

    return called(value)


# Means over rows, and what is linear in their gradients.


@loss(EQUAL)
def mean_squares(net, x, y):
    return mean((net.scores(x) - one_hot(y, x)) ** 2)


@loss(EQUAL)
def cross_entropy(net, x, y):
    return mean(rows_of(net, x, y))


@loss(EQUAL)
def label_smoothing(net, x, y):
    return mean(tf.nn.softmax_cross_entropy_with_logits(0.9 * one_hot(y, x) + 0.025, net.scores(x)))


@loss(EQUAL)
def weight_decay_as_a_term(net, x, y):
    decay = sum(total(weight**2) for weight in net.trainable_weights)
    return mean(rows_of(net, x, y)) + 0.1 * decay


@loss(EQUAL)
def huber(net, x, y):
    return mean(tf.keras.losses.huber(one_hot(y, x), net.scores(x)))


@loss(EQUAL)
def root_within_a_row(net, x, _y):
    return mean(tf.sqrt(total(net.scores(x) ** 2, 1) + 1e-6))


@loss(EQUAL)
def reversed_gradient(net, x, y):
    hidden = with_gradient(net.hidden(x), lambda gradient: -0.3 * gradient)
    return mean(cross_entropies(y, net.last(hidden)))


@loss(EQUAL)
def distillation(net, x, _y):
    teacher = tf.nn.softmax(x[:, :CLASSES] * 2)
    student = tf.nn.log_softmax(net.scores(x) / 2)
    return 4 * mean(total(teacher * (tf.math.log(teacher) - student), 1))


@loss(EQUAL)
def triplets_within_rows(net, x, _y):
    here, near, far = net.scores(x), net.scores(x + 0.1), net.scores(-x)
    near, far = (tf.norm(here - other + 1e-6, axis=1) for other in (near, far))
    return mean(tf.nn.relu(near - far + 5))


@loss(EQUAL)
def cosine_to_a_target(net, x, y):
    return mean(1 - total(normalized(net.scores(x)) * one_hot(y, x), 1))


@loss(EQUAL)
def binary_with_logits(net, x, y):
    return mean(tf.nn.sigmoid_cross_entropy_with_logits(one_hot(y, x), net.scores(x)))


@loss(EQUAL)
def focal(net, x, y):
    each = rows_of(net, x, y)
    return mean((1 - tf.exp(-each)) ** 2 * each)


@loss(EQUAL)
def dice_within_rows(net, x, y):
    p, t = tf.sigmoid(net.scores(x)), one_hot(y, x)
    return mean(1 - 2 * total(p * t, 1) / (total(p, 1) + total(t, 1)))


@loss(EQUAL)
def boxes_iou_within_rows(net, x, _y):
    centre, size = net.scores(x)[:, :2], tf.sigmoid(net.scores(x)[:, 2:]) + 0.1
    low, high = tf.maximum(centre - size, x[:, :2] - 1), tf.minimum(centre + size, x[:, :2] + 1)
    sides = tf.nn.relu(high - low)
    both = sides[:, 0] * sides[:, 1]
    return mean(1 - both / (4 * size[:, 0] * size[:, 1] + 4 - both))


@loss(EQUAL)
def masked_with_a_constant_count(net, x, y):
    return mean(rows_of(net, x, y) * tf.cast(x[:, 1] > 0, x.dtype))


@loss(EQUAL)
def gradient_penalty_within_rows(net, x, _y):
    with tf.GradientTape() as tape:
        tape.watch(x)
        scores = net.scores(x)
    return mean((tf.norm(tape.gradient(scores, x), axis=1) - 1) ** 2)


@loss(EQUAL)
def policy_gradient_with_given_advantages(net, x, y):
    return mean(rows_of(net, x, y) * x[:, 0])


@loss(EQUAL)
def evidence_lower_bound(net, x, _y):
    middle, spread = net.scores(x)[:, :2], net.scores(x)[:, 2:]
    return -0.5 * mean(total(1 + spread - middle**2 - tf.exp(spread), 1))


@loss(EQUAL, "words")
def embedding(net, x, y):
    return mean(cross_entropies(y, net.scores(net.part(y * 2) + x)))


@loss(EQUAL, "layer_norm")
def layer_norm(net, x, y):
    return mean(cross_entropies(y, net.last(net.part(net.first(x)))))


@loss(OWN, "batch_norm")
def batch_norm(net, x, y):
    return mean(cross_entropies(y, net.last(net.part(net.first(x), training=True))))


@loss(OWN, "dropout")
def dropout(net, x, y):
    return mean(cross_entropies(y, net.last(net.part(net.hidden(x), training=True))))


@loss(OWN, "noise")
def noise_of_its_own(net, x, y):
    noise = 0.1 * tf.random.normal(tf.shape(x), dtype=x.dtype)
    return mean(cross_entropies(y, net.scores(net.part(x, training=True) + noise)))


# Means over what a batch happens to have.


@loss(NAMED)
def ignored_labels(net, x, y):
    kept = tf.cast(x[:, 0] <= 0.3, x.dtype)
    return total(rows_of(net, x, y) * kept) / total(kept)


@loss(NAMED)
def class_weights(net, x, y):
    weights = tf.gather(tf.constant([1.0, 5.0, 0.2, 3.0], x.dtype), y)
    return total(rows_of(net, x, y) * weights) / total(weights)


@loss(NAMED)
def selected_rows(net, x, y):
    return mean(tf.boolean_mask(rows_of(net, x, y), x[:, 1] > -1))


@loss(NAMED)
def weighted_mean(net, x, y):
    weights = tf.abs(x[:, 2])
    return total(rows_of(net, x, y) * weights) / total(weights)


@loss(NAMED)
def positive_anchors(net, x, y):
    positive = tf.cast(tf.equal(y, 0), x.dtype)
    found = total(total(tf.abs(net.scores(x)), 1) * positive)
    return found / tf.maximum(total(positive), 1)


# Functions of a mean.


@loss(NAMED)
def root_of_the_mean(net, x, y):
    return tf.sqrt(mean_squares(net, x, y))


@loss(NAMED)
def perplexity(net, x, y):
    return tf.exp(cross_entropy(net, x, y))


@loss(NAMED)
def log_of_the_mean_probability(net, x, _y):
    return -mean(tf.math.log(tf.reduce_mean(tf.nn.softmax(net.scores(x)), 0)))


@loss(NAMED)
def square_of_the_mean(net, x, y):
    return cross_entropy(net, x, y) ** 2


@loss(NAMED)
def squared_hinge_of_the_mean(net, x, y):
    return tf.nn.relu(cross_entropy(net, x, y) - 0.5) ** 2


# Losses that compare rows.


def diagonal(z, other):
    return mean(cross_entropies(tf.range(tf.shape(z)[0]), z @ tf.transpose(other) / 0.5))


@loss(NAMED)
def contrastive(net, x, _y):
    z = normalized(net.scores(x))
    return diagonal(z, z)


@loss(NAMED)
def clip(net, x, _y):
    one, other = normalized(net.scores(x)), normalized(net.scores(x * x))
    return (diagonal(one, other) + diagonal(other, one)) / 2


@loss(NAMED)
def barlow_twins(net, x, _y):
    one, other = (z - tf.reduce_mean(z, 0) for z in (net.scores(x), net.scores(x + 0.1)))
    n = tf.cast(tf.shape(x)[0], x.dtype)
    c = tf.transpose(one / deviation(one)) @ (other / deviation(other)) / n
    return total((c - tf.eye(CLASSES, dtype=c.dtype)) ** 2)


@loss(NAMED)
def variance_over_the_batch(net, x, _y):
    return mean(tf.nn.relu(1 - deviation(net.scores(x))))


@loss(NAMED)
def covariance(net, x, _y):
    z = net.scores(x) - tf.reduce_mean(net.scores(x), 0)
    return total((tf.transpose(z) @ z / tf.cast(tf.shape(x)[0] - 1, x.dtype)) ** 2)


@loss(NAMED)
def pearson(net, x, _y):
    p, t = (z - mean(z) for z in (net.scores(x)[:, 0], x[:, 0]))
    return 1 - total(p * t) / (tf.norm(p) * tf.norm(t))


@loss(NAMED)
def hardest_triplets(net, x, y):
    z = net.scores(x)
    apart = total((z[:, None] - z[None]) ** 2, 2)
    same = tf.equal(y[:, None], y[None])
    far = tf.reduce_max(tf.where(same, apart, 0), 1)
    near = tf.reduce_min(tf.where(same, tf.constant(1e3, apart.dtype), apart), 1)
    return mean(tf.nn.relu(far - near + 1))


@loss(NAMED)
def supervised_contrastive(net, x, y):
    z = normalized(net.scores(x))
    same = tf.cast(tf.equal(y[:, None], y[None]), z.dtype) - tf.eye(tf.shape(y)[0], dtype=z.dtype)
    each = total(tf.nn.log_softmax(z @ tf.transpose(z) / 0.5) * same, 1)
    return -mean(each / tf.maximum(total(same, 1), 1))


@loss(NAMED)
def mean_discrepancy(net, x, _y):
    one, other = (tf.reduce_mean(net.scores(z), 0) for z in (x, tf.reverse(x, [1])))
    return total((one - other) ** 2)


@loss(NAMED)
def sinkhorn(net, x, _y):
    plan = tf.exp(net.scores(x))
    for _ in range(3):
        plan = plan / tf.reduce_sum(plan, 0, keepdims=True) / CLASSES
        plan = plan / tf.reduce_sum(plan, 1, keepdims=True)
        plan = plan / tf.cast(tf.shape(x)[0], x.dtype)
    return total(plan * net.scores(x) ** 2)


@loss(NAMED)
def dice_over_the_batch(net, x, y):
    p, t = tf.sigmoid(net.scores(x)), one_hot(y, x)
    return 1 - 2 * total(p * t) / (total(p) + total(t))


@loss(NAMED)
def largest_row(net, x, y):
    return tf.reduce_max(rows_of(net, x, y))


@loss(NAMED)
def hard_examples(net, x, y):
    return mean(tf.math.top_k(rows_of(net, x, y), 3).values)


@loss(NAMED)
def median_row(net, x, y):
    each = tf.sort(rows_of(net, x, y))
    return each[(tf.shape(each)[0] - 1) // 2]


@loss(NAMED, "gate")
def load_of_experts(net, x, y):
    gates = tf.nn.softmax(net.part(x))
    share = tf.reduce_mean(tf.one_hot(tf.argmax(gates, 1), 2, dtype=x.dtype), 0)
    return cross_entropy(net, x, y) + 2 * total(share * tf.reduce_mean(gates, 0))


@loss(NAMED, "gate")
def importance_of_experts(net, x, _y):
    importance = total(tf.nn.softmax(net.part(x)), 0)
    return tf.math.reduce_variance(importance) / mean(importance) ** 2


@loss(NAMED)
def normalized_advantages(net, x, y):
    advantage = (x[:, 0] - mean(x[:, 0])) / deviation(x[:, 0])
    return mean(rows_of(net, x, y) * advantage)


@loss(NAMED)
def ratio_by_its_own_mean(net, x, y):
    each = rows_of(net, x, y)
    return mean(tf.sqrt(each) / mean(tf.stop_gradient(each)))


@loss(NAMED)
def penalty_of_the_mean_slope(net, x, _y):
    with tf.GradientTape() as tape:
        tape.watch(x)
        scores = mean(net.scores(x))
    return mean((tf.norm(tape.gradient(scores, x), axis=1) * 10 - 1) ** 2)


# What depends on the size of gradients, or on counts of rows.


@loss(NAMED)
def sum_of_rows(net, x, y):
    return total(rows_of(net, x, y)) / 24


@loss(NAMED)
def function_that_clamps(net, x, y):
    def clamp(gradient):
        return tf.clip_by_value(gradient, -0.002, 0.002)

    return mean(cross_entropies(y, net.last(with_gradient(net.hidden(x), clamp))))


@loss(NAMED)
def hook_that_normalizes(net, x, y):
    return mean(cross_entropies(y, net.last(with_gradient(net.hidden(x), normalized))))
