"""TensorFlow's ParameterServerStrategy: the peer of tutti's parameter servers.

    python3 -m venv build/tensorflow-venv
    build/tensorflow-venv/bin/pip install tensorflow-cpu
    build/tensorflow-venv/bin/python bench/peer_tensorflow_ps.py --model mlp

TensorFlow has a venv of its own, never the project's .venv. Starts workers and servers as processes
of this host (TF_CONFIG, free ports of 127.0.0.1) and a chief with TensorFlow's own custom loop:
ClusterCoordinator schedules a tf.function, all at once so that no worker waits for the chief to
schedule, and joins. Variables live on the servers; each worker reads them, computes gradients and
has Adam applied where the variables are, without waiting for other workers. With several servers
variables of 256 KiB and more are cut over them.

model  mlp   784-128-10        wide  784-2048-2048-10        float32, ReLU, Adam 1e-3

A *step* is one batch of one worker and one update. Prints one JSON line, for all workers together:
  images_per_second  steps * worker_batch / seconds
  step_ms            1000 * seconds * workers / steps: how long a worker is at a step
  first_loss, loss   mean cross entropy of the first 20 steps (of warm-up) and of the last 20
Exit 1 when updates were lost, when the loss did not fall, or when --time-limit passed.
"""

import argparse
import ctypes
import gzip
import importlib.util
import json
import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib

NAME = "peer_tensorflow_ps"
ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLES = """examples:
  P=build/tensorflow-venv/bin/python
  $P bench/peer_tensorflow_ps.py
  $P bench/peer_tensorflow_ps.py --model wide --steps 200 --json FILE
  $P bench/peer_tensorflow_ps.py --workers 4 --servers 2 --batch-size 256
  $P bench/peer_tensorflow_ps.py --steps-per-schedule 1 --optimizer keras    as TF's tutorial does
"""
PIXELS, CLASSES = 784, 10
LAYERS = {"mlp": (PIXELS, 128, CLASSES), "wide": (PIXELS, 2048, 2048, CLASSES)}
# Timed steps unless told: some 5 s on a 2-core machine.
STEPS = {"mlp": 1920, "wide": 96}
STEPS_PER_SCHEDULE = {"mlp": 32, "wide": 4}
LEARNING_RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8
MIN_SHARD_BYTES = 256 << 10
# Schedules of the warm-up, a worker, at least: the first ones are traced and sent to the workers.
WARMUP_SCHEDULES = 3
LOSSES = 20  # averaged at most
# From so many steps on the loss must have fallen.
STEPS_TO_LEARN = 100
PR_SET_PDEATHSIG = 1  # sys/prctl.h


def fail(text, code=2):
    print(f"{NAME}: {text}", file=sys.stderr)
    sys.exit(code)


def count(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def add(flag, text, **options):
        parser.add_argument(flag, help=text, **options)

    def add_count(flag, default, text):
        shown = "%(default)s"
        if isinstance(default, dict):  # by model
            shown, default = ", ".join(f"{n} {model}" for model, n in default.items()), None
        elif isinstance(default, str):
            shown, default = default, None
        add(flag, f"{text} (default: {shown})", type=count, default=default, metavar="N")

    add("--model", "default: mlp", choices=LAYERS, default="mlp")
    add(
        "--data",
        "folder of doodles: one .npy or .npy.gz file a class (default: that of examples/)",
        default=str(ROOT / "examples/data/quickdraw"),
        metavar="DIR",
    )
    add_count("--workers", 2, "processes that compute")
    add_count("--servers", 1, "processes that keep the variables")
    add_count("--batch-size", 128, "samples of one step of every worker, together")
    add_count("--steps", STEPS, "timed steps, of all workers; rounded up to whole schedules")
    add_count(
        "--warmup",
        "a tenth of --steps",
        f"steps before the clock starts, at least {WARMUP_SCHEDULES} schedules a worker",
    )
    add_count("--steps-per-schedule", STEPS_PER_SCHEDULE, "steps of one scheduled function")
    add(
        "--optimizer",
        "fused: TensorFlow's own Adam operator; keras: keras.optimizers.Adam (default: fused)",
        choices=["fused", "keras"],
        default="fused",
    )
    add_count("--threads", 1, "threads inside an operator, a worker or server")
    add_count("--inter-threads", "--workers + 1", "operators at once, a worker or server")
    add(
        "--pin",
        "worker i on core i where there are enough cores (default: yes)",
        action=argparse.BooleanOptionalAction,
        default=True,
    )
    add_count("--time-limit", 300, "seconds after which all is ended, exit 1")
    add("--json", "the line goes to this file too", type=pathlib.Path, metavar="FILE")
    add("--role", argparse.SUPPRESS, choices=["launcher", "chief", "server"], default="launcher")
    arguments = parser.parse_args()
    if arguments.batch_size % arguments.workers != 0:
        parser.error(
            f"--batch-size {arguments.batch_size} cannot be shared by {arguments.workers} workers"
        )
    arguments.inter_threads = arguments.inter_threads or arguments.workers + 1
    if arguments.inter_threads < 2:
        parser.error("--inter-threads 1: TensorFlow's servers hang with one, give 2 or more")
    arguments.worker_batch = arguments.batch_size // arguments.workers
    arguments.steps_per_schedule = (
        arguments.steps_per_schedule or STEPS_PER_SCHEDULE[arguments.model]
    )
    arguments.steps = arguments.steps or STEPS[arguments.model]
    arguments.warmup = arguments.warmup or max(1, arguments.steps // 10)
    return arguments


def load_train(folder):
    """What tutti trains on, all but the last sixth of each class: x uint8 [n, 784], y int64 [n]."""
    import numpy

    files = sorted(
        file for file in pathlib.Path(folder).iterdir() if file.name.endswith((".npy", ".npy.gz"))
    )
    if len(files) != CLASSES:
        raise ValueError(f"{len(files)} .npy or .npy.gz files in {folder}, not {CLASSES}")
    xs, ys = [], []
    for label, file in enumerate(files):
        with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as stream:
            rows = numpy.load(stream)
        if rows.dtype != numpy.uint8 or rows.ndim != 2 or rows.shape[1] != PIXELS:
            raise ValueError(
                f"{file} holds {rows.dtype} {list(rows.shape)}, not uint8 [n, {PIXELS}]"
            )
        rows = rows[: len(rows) - len(rows) // 6]
        xs.append(rows)
        ys.append(numpy.full(len(rows), label, numpy.int64))
    return numpy.concatenate(xs), numpy.concatenate(ys)


def serve(arguments):
    """A worker or a server: TF_CONFIG says which."""
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    cores = sorted(os.sched_getaffinity(0))
    if arguments.pin and task["type"] == "worker" and len(cores) >= arguments.workers:
        os.sched_setaffinity(0, {cores[task["index"]]})
    import tensorflow as tf

    here = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=arguments.threads,
        inter_op_parallelism_threads=arguments.inter_threads,
    )
    tf.distribute.Server(
        here.cluster_spec(),
        job_name=here.task_type,
        task_index=here.task_id,
        protocol="grpc",
        config=config,
    ).join()


class Model:
    """Weights on the servers; one step of a worker reads them and updates them."""

    def __init__(self, tf, arguments, strategy):
        self.tf, self.strategy = tf, strategy
        sizes = LAYERS[arguments.model]
        tf.random.set_seed(7)
        with strategy.scope():
            self.layers = [
                (self.uniform(fan_in, fan_out), tf.Variable(tf.zeros([fan_out])))
                for fan_in, fan_out in zip(sizes, sizes[1:])
            ]
            self.updates = tf.Variable(0, dtype=tf.int64)
        # A variable that is cut is a ShardedVariable; the optimizer sees its pieces.
        self.variables = [
            piece
            for layer in self.layers
            for variable in layer
            for piece in getattr(variable, "variables", [variable])
        ]
        if arguments.optimizer == "keras":
            import keras

            with strategy.scope():
                optimizer = keras.optimizers.Adam(LEARNING_RATE, BETA1, BETA2, EPSILON)
                optimizer.build(self.variables)
            self.apply = lambda grads: optimizer.apply_gradients(zip(grads, self.variables))
        else:
            self.moments = [(self.zeros_beside(v), self.zeros_beside(v)) for v in self.variables]
            self.apply = self.apply_fused

    def uniform(self, fan_in, fan_out):
        bound = math.sqrt(6 / (fan_in + fan_out))  # Glorot & Bengio 2010
        return self.tf.Variable(self.tf.random.uniform([fan_in, fan_out], -bound, bound))

    def zeros_beside(self, variable):
        with self.tf.device(variable.device):
            return self.tf.Variable(self.tf.zeros(variable.shape))

    def apply_fused(self, grads):
        """Adam in the operator that runs where the variable is: only gradients travel."""
        tf = self.tf
        with tf.device(self.updates.device):
            number = tf.cast(self.updates.read_value(), tf.float32) + 1
            power1, power2 = tf.pow(BETA1, number), tf.pow(BETA2, number)
        for variable, (m, v), grad in zip(self.variables, self.moments, grads):
            with tf.device(variable.device):
                tf.raw_ops.ResourceApplyAdam(
                    var=variable.handle,
                    m=m.handle,
                    v=v.handle,
                    beta1_power=power1,
                    beta2_power=power2,
                    lr=LEARNING_RATE,
                    beta1=BETA1,
                    beta2=BETA2,
                    epsilon=EPSILON,
                    grad=grad,
                )

    def logits(self, x):
        tf = self.tf
        for number, (weight, bias) in enumerate(self.layers):
            if number > 0:
                x = tf.nn.relu(x)
            x = tf.nn.bias_add(
                tf.matmul(x, tf.convert_to_tensor(weight)), tf.convert_to_tensor(bias)
            )
        return x

    def step(self, x, y):
        tf = self.tf
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, self.logits(x))
            loss = tf.reduce_mean(losses)
        self.apply(tape.gradient(loss, self.variables))
        self.updates.assign_add(1)
        return loss

    def steps_function(self, number):
        """A tf.function of `number` steps one after another: what is scheduled."""

        @self.tf.function
        def steps(iterator):
            return self.tf.stack(
                [self.strategy.run(self.step, args=next(iterator)) for _ in range(number)]
            )

        return steps


def batches_function(tf, arguments):
    """A function that makes a worker's batches: whole batches in memory, shuffled, without end."""
    import numpy

    x, y = load_train(arguments.data)
    batch = arguments.worker_batch
    number = len(x) // batch
    order = numpy.random.default_rng(1).permutation(len(x))[: number * batch]
    x, y = x[order].reshape(number, batch, PIXELS), y[order].reshape(number, batch)

    def batches():
        data = tf.data.Dataset.from_tensor_slices((x, y))
        data = data.map(lambda ink, label: (tf.cast(ink, tf.float32) / 255, label)).cache()
        return data.shuffle(number).repeat().prefetch(2)

    return batches


def train(arguments):
    """The chief: its figures."""
    import numpy
    import tensorflow as tf

    cut = tf.distribute.experimental.partitioners.MinSizePartitioner(
        MIN_SHARD_BYTES, max_shards=arguments.servers
    )
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver(),
        variable_partitioner=cut if arguments.servers > 1 else None,
    )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(batches_function(tf, arguments)))
    model = Model(tf, arguments, strategy)
    each = arguments.steps_per_schedule
    function = model.steps_function(each)

    def run(schedules):
        losses = [coordinator.schedule(function, args=(iterator,)) for _ in range(schedules)]
        coordinator.join()
        return losses

    def fetch(losses):
        return numpy.concatenate([loss.fetch() for loss in losses])

    warmup = max(math.ceil(arguments.warmup / each), WARMUP_SCHEDULES * arguments.workers)
    schedules = math.ceil(arguments.steps / each)
    some = math.ceil(LOSSES / each)
    first = run(warmup)
    begin = time.perf_counter()
    last = run(schedules)
    seconds = time.perf_counter() - begin
    steps = schedules * each
    return {
        "bench": "parameter_server",
        "peer": "tensorflow",
        "version": tf.__version__,
        "model": arguments.model,
        "workers": arguments.workers,
        "servers": arguments.servers,
        "global_batch": arguments.batch_size,
        "worker_batch": arguments.worker_batch,
        "steps": steps,
        "warmup": warmup * each,
        "seconds": round(seconds, 4),
        "images_per_second": round(steps * arguments.worker_batch / seconds, 1),
        "step_ms": round(1000 * seconds * arguments.workers / steps, 4),
        "first_loss": round(float(fetch(first[:some])[:LOSSES].mean()), 4),
        "loss": round(float(fetch(last[-some:])[-LOSSES:].mean()), 4),
        "updates": int(model.updates.numpy()),
        "optimizer": arguments.optimizer,
        "steps_per_schedule": each,
        "threads": arguments.threads,
        "inter_threads": arguments.inter_threads,
        "pin": arguments.pin,
    }


def check_training(figures):
    done = figures["warmup"] + figures["steps"]
    if figures["updates"] != done:
        fail(f"{figures['updates']} updates arrived of {done} steps", 1)
    first, last = figures["first_loss"], figures["loss"]
    if not math.isfinite(last) or (done >= STEPS_TO_LEARN and last >= first):
        fail(f"the loss did not fall: {first} to {last} in {done} steps", 1)


class Job:
    """The processes of one run. None outlives the `with` block, nor the launcher."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.processes = {}
        self.folder = tempfile.TemporaryDirectory(prefix=NAME)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
        self.folder.cleanup()

    def file(self, name, kind):
        return pathlib.Path(self.folder.name) / f"{name}.{kind}"

    def start(self):
        numbers = {"chief": 1, "ps": self.arguments.servers, "worker": self.arguments.workers}
        cluster = free_addresses(numbers)
        # Proxies must not see what goes over the loopback.
        environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        environment.update(
            TF_CPP_MIN_LOG_LEVEL="2",
            CUDA_VISIBLE_DEVICES="-1",
            KERAS_BACKEND="tensorflow",
            GRPC_FAIL_FAST="use_caller",
        )
        prctl = ctypes.CDLL(None).prctl
        for job in ("ps", "worker", "chief"):
            for index in range(numbers[job]):
                name = f"{job} {index}"
                task = {"cluster": cluster, "task": {"type": job, "index": index}}
                role = "chief" if job == "chief" else "server"
                with open(self.file(name, "out"), "w") as out, open(
                    self.file(name, "err"), "w"
                ) as err:
                    self.processes[name] = subprocess.Popen(
                        [sys.executable, __file__, *sys.argv[1:], "--role", role],
                        env={**environment, "TF_CONFIG": json.dumps(task)},
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                        preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
                    )

    def figures(self):
        """What the chief found, waiting for it."""
        end = time.monotonic() + self.arguments.time_limit
        while True:
            # The chief first: others may end when it does.
            for name in ("chief 0", *self.processes):
                code = self.processes[name].poll()
                if name == "chief 0" and code == 0:
                    return json.loads(self.file(name, "out").read_text().splitlines()[-1])
                if code is not None:
                    fail(f"{name} ended with {code}{self.last_words(name)}", 1)
            if time.monotonic() > end:
                fail(
                    f"not done within --time-limit {self.arguments.time_limit} s"
                    f"{self.last_words('chief 0')}",
                    1,
                )
            time.sleep(0.02)

    def last_words(self, name):
        lines = self.file(name, "err").read_text(errors="replace").splitlines()[-15:]
        return "".join(f"\n  {line}" for line in (["; it said:"] + lines if lines else []))


def free_addresses(numbers):
    """job -> addresses on the loopback that were free just now."""
    sockets = {
        job: [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
        for job, number in numbers.items()
    }
    addresses = {
        job: [f"127.0.0.1:{s.getsockname()[1]}" for s in some] for job, some in sockets.items()
    }
    for some in sockets.values():
        for one in some:
            one.close()
    return addresses


def check_environment(arguments):
    if importlib.util.find_spec("tensorflow") is None:
        venv = ROOT / "build/tensorflow-venv"
        fail(
            f"no tensorflow in {sys.executable}; make a venv for it and run this with its python:\n"
            f"  python3 -m venv {venv} && {venv}/bin/pip install tensorflow-cpu\n"
            f"  {venv}/bin/python {' '.join(sys.argv)}"
        )
    try:
        samples = len(load_train(arguments.data)[0])
    except (OSError, EOFError, ValueError, zlib.error) as error:
        fail(f"--data: {error}")
    if samples < arguments.worker_batch:
        fail(f"--batch-size: {arguments.worker_batch} a worker, of only {samples} samples")
    if arguments.json:
        try:
            arguments.json.open("a").close()
        except OSError as error:
            fail(f"--json: {error}")


def launch(arguments):
    check_environment(arguments)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _: sys.exit(128 + got))
    with Job(arguments) as job:
        job.start()
        figures = job.figures()
    line = json.dumps(figures)
    print(line, flush=True)
    if arguments.json:
        arguments.json.write_text(line + "\n")
    check_training(figures)


def main():
    arguments = parse_arguments()
    if arguments.role == "server":
        serve(arguments)
    elif arguments.role == "chief":
        print(json.dumps(train(arguments)), flush=True)
        os._exit(0)  # tearing a cluster down takes seconds, and the launcher ends it anyway
    else:
        launch(arguments)


if __name__ == "__main__":
    main()
