"""Backend "tutti" in processes of its own: results beside a slow, obvious oracle, and failures.

    python -m unittest python/tests/test_backend.py      (make python-test)
"""

import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import unittest
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
import tutti.torch

LIMIT_S = 120  # of one test, all ranks


def _enter(rank, ranks, body, file, pipe, timeout_s, environment):
    """One rank: sends nothing when all went well, else the error."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "tutti",
            init_method=f"file://{file}",
            rank=rank,
            world_size=ranks,
            timeout=datetime.timedelta(seconds=timeout_s),
        )
        body(rank, ranks)
        if dist.is_initialized():
            dist.destroy_process_group()
        pipe.send("")
    except BaseException:
        pipe.send(traceback.format_exc())
        raise


class RanksTest(unittest.TestCase):
    def run_ranks(self, body, ranks=2, timeout_s=60, killed=(), environment=None):
        """Runs body(rank, ranks) in `ranks` processes; none may fail, hang or die but `killed`."""
        context = torch.multiprocessing.get_context("fork")  # nothing has run here: no threads
        with tempfile.TemporaryDirectory() as folder:
            pairs = [context.Pipe(duplex=False) for _ in range(ranks)]
            processes = [
                context.Process(
                    target=_enter,
                    args=(
                        *(rank, ranks, body, f"{folder}/store", pairs[rank][1]),
                        *(timeout_s, environment or {}),
                    ),
                )
                for rank in range(ranks)
            ]
            for process in processes:
                process.start()
            end = time.monotonic() + LIMIT_S
            for rank, process in enumerate(processes):
                if rank not in killed:  # that one may be stopped
                    process.join(max(0, end - time.monotonic()))
            for rank, process in enumerate(processes):
                hung = process.is_alive()
                process.kill()
                process.join()
                if rank in killed:
                    continue
                words = pairs[rank][0].recv() if pairs[rank][0].poll() else "said nothing"
                self.assertFalse(hung, f"rank {rank} hung: {words}")
                self.assertEqual(words, "", f"rank {rank}")


# Rank 2 ends with the world as it is, which nobody destroys; rank 0 has had a child that ended as
# programs do.
ENDING_PROGRAM = """
import ctypes, os, sys
import torch, torch.distributed as dist, tutti.torch
sys.path.insert(0, ".")
from test_backend import Failures
store, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("tutti", init_method=f"file://{store}", rank=rank, world_size=3)
dist.barrier()
if rank == 2:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
    sys.exit(0)
if rank == 0:
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
Failures.play_ball(1 - rank, begins=rank == 0)
"""


def pattern(rank, count, dtype=torch.float32):
    """Small whole numbers, so that any order of summation gives the same."""
    return ((torch.arange(count) * 7 + rank * 3) % 11).to(dtype)


def expect_equal(got, wanted):
    if not torch.equal(got, wanted):
        raise AssertionError(f"got {got}, expected {wanted}")


def store():
    return dist.distributed_c10d._get_default_store()


class Collectives(RanksTest):
    def test_all_reduce_of_every_type_and_length(self):
        def body(rank, ranks):
            types = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
            types += [torch.float16, torch.bfloat16, torch.float32, torch.float64]
            for dtype in types:
                for count in (0, 1, 2, 5, 1021, 70_001):
                    data = pattern(rank, count, dtype)
                    dist.all_reduce(data)
                    expect_equal(data, sum(pattern(r, count, dtype) for r in range(ranks)))

        self.run_ranks(body, 2)
        self.run_ranks(body, 3)

    def test_reductions(self):
        def body(rank, ranks):
            stack = torch.stack([pattern(r, 50, torch.int32) for r in range(ranks)])
            wanted = {
                dist.ReduceOp.MIN: stack.amin(0),
                dist.ReduceOp.MAX: stack.amax(0),
                dist.ReduceOp.PRODUCT: stack.prod(0, dtype=torch.int32),
                dist.ReduceOp.BAND: stack[0] & stack[1] & stack[2],
                dist.ReduceOp.BOR: stack[0] | stack[1] | stack[2],
                dist.ReduceOp.BXOR: stack[0] ^ stack[1] ^ stack[2],
            }
            for op, result in wanted.items():
                data = pattern(rank, 50, torch.int32)
                dist.all_reduce(data, op)
                expect_equal(data, result)
            mean = pattern(rank, 50)
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            expect_equal(mean, stack.float().sum(0) / ranks)
            flags = torch.tensor([rank == 1, True, False])
            dist.all_reduce(flags, dist.ReduceOp.MAX)
            expect_equal(flags, torch.tensor([True, True, False]))

        self.run_ranks(body, 3)

    def test_tensors_that_are_not_contiguous(self):
        def body(rank, ranks):
            base = pattern(rank, 24).reshape(4, 6)
            view = base.t()[::2]
            before = base.clone()
            dist.all_reduce(view)
            wanted = sum(pattern(r, 24).reshape(4, 6).t()[::2] for r in range(ranks))
            expect_equal(view, wanted)
            expect_equal(base.t()[1::2], before.t()[1::2])  # what lies between is untouched
            rooms = [torch.zeros(6, 4).t() for _ in range(ranks)]
            dist.all_gather(rooms, pattern(rank, 24).reshape(6, 4).t().contiguous().t().t())
            for r, room in enumerate(rooms):
                expect_equal(room, pattern(r, 24).reshape(6, 4).t())
            strided = torch.zeros(3, 2, 2)[:, :, 0]
            strided.copy_(torch.full((3, 2), float(rank)))
            dist.broadcast(strided, 1)
            expect_equal(strided, torch.ones(3, 2))

        self.run_ranks(body)

    def test_gathers_and_scatters(self):
        def body(rank, ranks):
            whole = torch.zeros(ranks * 5)
            dist.all_gather_into_tensor(whole, pattern(rank, 5))
            expect_equal(whole, torch.cat([pattern(r, 5) for r in range(ranks)]))
            part = torch.zeros(5)
            dist.reduce_scatter_tensor(part, pattern(rank, 5 * ranks))
            total = sum(pattern(r, 5 * ranks) for r in range(ranks))
            expect_equal(part, total[rank * 5 : rank * 5 + 5])
            parts = list(pattern(rank, 5 * ranks).split(5))
            dist.reduce_scatter(part, [p.clone() for p in parts])
            expect_equal(part, total[rank * 5 : rank * 5 + 5])
            got = [torch.zeros(5) for _ in range(ranks)] if rank == 1 else None
            dist.gather(pattern(rank, 5), got, dst=1)
            if rank == 1:
                for r in range(ranks):
                    expect_equal(got[r], pattern(r, 5))
            dist.scatter(part, parts if rank == 2 else None, src=2)
            expect_equal(part, pattern(2, 5 * ranks)[rank * 5 : rank * 5 + 5])
            complex_part = torch.full((3,), complex(rank, 1))
            rooms = [torch.zeros(3, dtype=torch.complex64) for _ in range(ranks)]
            dist.all_gather(rooms, complex_part)
            expect_equal(torch.stack(rooms)[:, 0].real, torch.arange(float(ranks)))

        self.run_ranks(body, 3)

    def test_all_to_all_of_unequal_parts(self):
        def body(rank, ranks):
            # Rank s sends s + r rows to rank r.
            send = [rank + r for r in range(ranks)]
            receive = [s + rank for s in range(ranks)]
            rows = torch.full((sum(send), 2), float(rank))
            room = torch.zeros(sum(receive), 2)
            dist.all_to_all_single(room, rows, receive, send)
            wanted = [torch.full((n,), float(s)) for s, n in enumerate(receive)]
            expect_equal(room[:, 0], torch.cat(wanted))
            outputs = [torch.zeros(n) for n in receive]
            inputs = [torch.full((n,), float(10 * rank + r)) for r, n in enumerate(send)]
            dist.all_to_all(outputs, inputs)
            for s, output in enumerate(outputs):
                expect_equal(output, torch.full((receive[s],), float(10 * s + rank)))

        self.run_ranks(body, 3)

    def test_sparse_sums(self):
        def body(rank, ranks):
            def make(r):
                return torch.sparse_coo_tensor(torch.tensor([[r, r + 1]]), torch.ones(2, 3), (5, 3))

            data = make(rank)
            dist.all_reduce(data)
            expect_equal(data.to_dense(), sum(make(r).to_dense() for r in range(ranks)))
            empty = torch.sparse_coo_tensor(torch.zeros(1, 0).long(), torch.zeros(0), (4,))
            dist.all_reduce(empty)
            expect_equal(empty.to_dense(), torch.zeros(4))

        self.run_ranks(body, 3)

    def test_sums_have_the_same_bits_everywhere(self):
        def body(rank, ranks):
            generator = torch.Generator().manual_seed(rank)
            data = torch.randn(100_003, generator=generator)
            dist.all_reduce(data)
            everybody = [torch.empty_like(data) for _ in range(ranks)]
            dist.all_gather(everybody, data)
            for other in everybody:
                expect_equal(other, data)
            # The order of docs/design/order_of_summation.md for three ranks: (0 + 1) + 2.
            parts = [
                torch.randn(100_003, generator=torch.Generator().manual_seed(r)) for r in range(3)
            ]
            expect_equal(data, (parts[0] + parts[1]) + parts[2])

        self.run_ranks(body, 3)


class Futures(RanksTest):
    def test_many_in_flight_without_a_waiter(self):
        def body(rank, ranks):
            tensors = [torch.full((n + 1,), float(rank)) for n in range(200)]
            works = [dist.all_reduce(t, async_op=True) for t in tensors]
            for work, tensor in zip(works, tensors):
                value = work.get_future().wait()  # never Work.wait()
                assert value[0].data_ptr() == tensor.data_ptr()
                expect_equal(tensor, torch.full_like(tensor, float(sum(range(ranks)))))
            assert all(work.is_completed() for work in works)

        self.run_ranks(body, 3)

    def test_a_callback_may_wait_for_another_future(self):
        def body(rank, ranks):
            second = torch.ones(3)

            def then(future):
                inner = dist.all_reduce(second, async_op=True).get_future()
                return future.value()[0] + inner.wait()[0]

            first = torch.full((3,), float(rank))
            future = dist.all_reduce(first, async_op=True).get_future().then(then)
            expect_equal(future.wait(), torch.full((3,), float(sum(range(ranks)) + ranks)))

        self.run_ranks(body, 3)

    def test_who_waits_may_run_a_callback_that_waits(self):
        # The other rank comes when this one has long been waiting: the thread in wait() moves the
        # operation, so it runs the callback. Which of two threads does is chance: several times.
        def body(rank, ranks):
            store = dist.distributed_c10d._get_default_store()
            second = torch.ones(3)

            def launch_and_wait(future):
                inner = dist.all_reduce(second, async_op=True).get_future()
                return future.value()[0] + inner.wait()[0].sum()

            for turn in range(8):
                key = f"rank 0 waits {turn}"
                second.fill_(1)
                if rank == 1:
                    store.wait([key])
                    time.sleep(0.2)  # so that it does; the test holds without
                first = torch.full((3,), float(rank))
                work = dist.all_reduce(first, async_op=True)
                future = work.get_future().then(launch_and_wait)
                store.set(key, "1")
                work.wait()
                expect_equal(future.wait(), torch.full((3,), 7.0))

        self.run_ranks(body, timeout_s=20)

    def test_a_callback_may_wait_for_what_ends_beside_it(self):
        # Both operations end in one look at the engine, when the other rank has come.
        def body(rank, ranks):
            store = dist.distributed_c10d._get_default_store()
            for waits in (True, False):
                key = f"rank 0 waits {waits}"
                tensors = [torch.full((3,), float(rank + i)) for i in range(4)]
                if rank == 1:
                    store.wait([key])
                    time.sleep(0.5)  # so that it does; the test holds without
                works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
                futures = [work.get_future() for work in works]
                last = futures[0].then(lambda _, later=futures[3]: later.wait()[0])
                store.set(key, "1")
                if waits:
                    works[0].wait()
                expect_equal(last.wait(), torch.full((3,), 7.0))

        self.run_ranks(body, timeout_s=20)

    def test_crossed_groups_do_not_block_each_other(self):
        def body(rank, ranks):
            a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
            order = (a, b) if rank == 0 else (b, a)
            tensors = {group: torch.ones(1000) for group in order}
            works = [dist.all_reduce(tensors[g], group=g, async_op=True) for g in order]
            for work in works:
                work.wait()
            for tensor in tensors.values():
                expect_equal(tensor, torch.full((1000,), 2.0))

        self.run_ranks(body, 2)

    def test_two_threads_on_two_groups(self):
        def body(rank, ranks):
            groups = [dist.new_group([0, 1]) for _ in range(2)]
            failures = []

            def loop(group):
                try:
                    for _ in range(50):
                        data = torch.ones(333)
                        dist.all_reduce(data, group=group)
                        expect_equal(data, torch.full((333,), 2.0))
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=loop, args=(g,)) for g in groups]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not failures, failures

        self.run_ranks(body, 2)


class Messages(RanksTest):
    def test_pairs_tags_and_anybody(self):
        def body(rank, ranks):
            right, left = (rank + 1) % ranks, (rank - 1) % ranks
            for count in (1, 1000, 300_000):
                room = torch.zeros(count)
                works = [dist.isend(pattern(rank, count), right), dist.irecv(room, left)]
                for work in works:
                    work.wait()
                expect_equal(room, pattern(left, count))
            if rank == 0:
                dist.send(torch.tensor([5]), 1, tag=5)
                dist.send(torch.tensor([6]), 1, tag=6)
            elif rank == 1:
                six, five = torch.zeros(1).long(), torch.zeros(1).long()
                dist.recv(six, 0, tag=6)  # the other one came before
                dist.recv(five, 0, tag=5)
                assert (five.item(), six.item()) == (5, 6)
            dist.barrier()
            if rank == 0:
                seen = set()
                for _ in range(ranks - 1):
                    room = torch.zeros(1)
                    source = dist.recv(room)
                    assert room.item() == source
                    seen.add(source)
                assert seen == set(range(1, ranks))
            else:
                dist.send(torch.tensor([float(rank)]), 0)

        self.run_ranks(body, 3)

    def test_a_receive_does_not_hold_up_collectives(self):
        def body(rank, ranks):
            room = torch.zeros(4)
            if rank == 0:
                late = dist.irecv(room, 1)
            data = torch.ones(10)
            dist.all_reduce(data)
            if rank == 1:
                dist.send(torch.ones(4), 0)
            elif rank == 0:
                late.wait()
                expect_equal(room, torch.ones(4))

        self.run_ranks(body, 2)

    def test_monitored_barrier_names_who_is_missing(self):
        def body(rank, ranks):
            dist.monitored_barrier()
            if rank == 0:
                missing = "Ranks 1, 2 failed to pass"
                with unittest.TestCase().assertRaisesRegex(RuntimeError, missing):
                    dist.monitored_barrier(
                        timeout=datetime.timedelta(seconds=0.3), wait_all_ranks=True
                    )

        self.run_ranks(body, 3)


class Failures(RanksTest):
    def test_a_killed_rank_is_named(self):
        def body(rank, ranks):
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            with unittest.TestCase().assertRaisesRegex(dist.DistBackendError, "rank 1.*died"):
                dist.all_reduce(torch.ones(1000))
            with unittest.TestCase().assertRaises(dist.DistBackendError):
                dist.all_reduce(torch.ones(1000), async_op=True).get_future().wait()

        self.run_ranks(body, 3, killed=(1,))

    def test_a_stopped_rank_is_named(self):
        def body(rank, ranks):
            pair = dist.new_group([1, 2])  # in which the lost one is rank 0
            if rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            words = "world rank 1 .*was silent for 2000 ms"
            with unittest.TestCase().assertRaisesRegex(dist.DistBackendError, words):
                dist.all_reduce(torch.ones(1000), group=pair if rank == 2 else None)

        self.run_ranks(body, 3, killed=(1,), environment={"TUTTI_SILENCE_LIMIT": "2"})

    def test_a_rank_stopped_while_a_group_forms_is_named(self):
        def body(rank, ranks):
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            words = "world rank 1 .*was silent for 2000 ms"
            with unittest.TestCase().assertRaisesRegex(RuntimeError, words):
                dist.new_group([0, 1])
                dist.barrier()  # rank 2 is in no new group

        self.run_ranks(body, 3, killed=(1,), environment={"TUTTI_SILENCE_LIMIT": "2"})

    def test_a_loss_ends_the_groups_of_the_lost_alone(self):
        def body(rank, ranks):
            pairs = [dist.new_group([0, 1]), dist.new_group([1, 2])]
            dist.barrier()
            if rank == lost:
                os.kill(os.getpid(), signal.SIGKILL)
            with unittest.TestCase().assertRaisesRegex(dist.DistBackendError, f"rank {lost}"):
                dist.all_reduce(torch.ones(5))
            whole = pairs[0] if lost == 2 else pairs[1]
            for _ in range(3):
                data = torch.ones(5)
                dist.all_reduce(data, group=whole)
                expect_equal(data, torch.full((5,), 2.0))

        for lost in (2, 0):  # the liveness channel ends at rank 0
            self.run_ranks(body, 3, killed=(lost,))

    def test_a_rank_that_leaves_in_order_is_no_loss(self):
        def body(rank, ranks):
            dist.barrier()
            if rank == first:
                return  # destroys the world
            others = [r for r in range(ranks) if r != first]
            self.play_ball(others[1 - others.index(rank)], begins=rank == others[0])

        for first in (2, 0):  # rank 0's process hears all
            self.run_ranks(body, 3, environment={"TUTTI_SILENCE_LIMIT": "1"})

    @staticmethod
    def play_ball(other, begins, seconds=2):
        """Messages to and from another rank of the world."""
        ball = torch.zeros(3)
        end = time.monotonic() + seconds
        while ball[0] == 0:
            ball[0] = float(begins and time.monotonic() > end)
            for step in (dist.send, dist.recv) if begins else (dist.recv, dist.send):
                step(ball, other)

    def test_a_program_that_ends_is_no_loss(self):
        """Neither without destroy_process_group nor as the child of a fork."""
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", ENDING_PROGRAM, f"{folder}/store"]
            ranks = [subprocess.Popen([*command, str(rank)]) for rank in range(3)]
            try:
                for process in ranks:
                    self.assertEqual(process.wait(LIMIT_S), 0)
            finally:
                for process in ranks:
                    process.kill()

    def test_a_passed_limit_ends_the_wait(self):
        def body(rank, ranks):
            if rank == 0:
                words = "Timed out.*rank 1"
                with unittest.TestCase().assertRaisesRegex(dist.DistBackendError, words):
                    dist.all_reduce(torch.ones(5))
                store().set("over", "")
            store().wait(["over"])  # rank 1 is there and calls nothing

        self.run_ranks(body, 2, timeout_s=1)

    def test_ranks_that_disagree(self):
        def body(rank, ranks):
            with unittest.TestCase().assertRaisesRegex(dist.DistBackendError, "disagree"):
                dist.all_reduce(torch.ones(5 + rank))

        self.run_ranks(body, 2)

    def test_what_ranks_did_last_is_recorded(self):
        def body(rank, ranks):
            dist.barrier()
            dist.all_reduce(torch.ones(7), async_op=True).wait()
            with self.assertRaises(dist.DistBackendError):
                dist.all_reduce(torch.ones(5 + rank))

        with tempfile.TemporaryDirectory() as folder:
            debug = {"TUTTI_RECORD_DIR": folder, "TUTTI_DEBUG": "1"}
            self.run_ranks(body, 2, environment=debug)
            records = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
        self.assertEqual(sorted(record["worker"] for record in records), [0, 1])
        self.assertEqual(len({record["job"] for record in records}), 1)
        for record in records:
            (group,) = record["groups"]
            self.assertEqual(group["rank"], record["worker"])
            self.assertIn("disagree", group["failure"])
            last, failed = group["operations"][-2:]
            self.assertEqual([last["elements"], last["state"]], [7, "done"])
            self.assertEqual([failed["elements"], failed["state"]], [5 + group["rank"], "failed"])
            self.assertEqual(Path(failed["file"]).name, "test_backend.py")
            self.assertEqual(failed["function"], "body")

    def test_wrong_use(self):
        def body(rank, ranks):
            refused = unittest.TestCase().assertRaises
            with refused(RuntimeError):
                dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND)
            with refused(RuntimeError):
                dist.all_reduce(torch.ones(3).long(), dist.ReduceOp.AVG)
            with refused(RuntimeError):
                dist.all_gather_into_tensor(torch.ones(3), torch.ones(2))
            data = torch.ones(3)
            dist.all_reduce(data)  # a refused call leaves the group whole
            expect_equal(data, torch.full((3,), 2.0))

        self.run_ranks(body, 2)

    # What it does with tensors of GPUs is tested in C++, on a CUDA of the tests' own: tests/devices.
    def test_one_backend_serves_both_kinds_of_devices(self):
        def body(rank, ranks):
            world = dist.group.WORLD
            self.assertEqual({device.type for device in world._device_types}, {"cpu", "cuda"})
            self.assertEqual(world._get_backend(torch.device("cuda")).engine, "shm")
            beside = dist.new_group([0, 1], backend="cpu:gloo,cuda:tutti")
            self.assertEqual(tutti.torch.engine(beside), "shm")
            with self.assertRaisesRegex(ValueError, "does not serve this group"):
                tutti.torch.engine(dist.new_group([0, 1], backend="gloo"))

        self.run_ranks(body)

    def test_groups_come_and_go(self):
        def body(rank, ranks):
            for _ in range(5):
                group = dist.new_group([0, 1])
                data = torch.ones(3)
                dist.all_reduce(data, group=group)
                dist.destroy_process_group(group)
            assert tutti.torch.engine() == "shm"
            alone = [dist.new_group([r]) for r in range(ranks)][rank]
            dist.all_reduce(data, group=alone)
            expect_equal(data, torch.full((3,), 2.0))

        self.run_ranks(body, 2)


if __name__ == "__main__":
    unittest.main()
