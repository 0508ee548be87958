"""Backend "tutti" between hosts: network namespaces stand for machines.

    python -m unittest python/tests/test_hosts.py      (make python-test; needs root and ip(8))
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

LIMIT_S = 120

# One rank: RANK, WORLD_SIZE and MASTER_ADDR come from the environment, the store is a file.
PROGRAM = """
import os, sys
import torch, torch.distributed as dist, tutti.torch
store, engine = sys.argv[1:]
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
dist.init_process_group("tutti", init_method=f"file://{store}", rank=rank, world_size=ranks)
assert tutti.torch.engine() == engine, tutti.torch.engine()
parts = [torch.randn(70_001, generator=torch.Generator().manual_seed(r)) for r in range(ranks)]
data = parts[rank].clone()
dist.all_reduce(data)
everybody = [torch.empty_like(data) for _ in range(ranks)]
dist.all_gather(everybody, data)
assert all(torch.equal(other, data) for other in everybody)
assert torch.allclose(data, sum(parts), atol=1e-5)
room = torch.zeros(1000)
works = [dist.isend(torch.full((1000,), float(rank)), (rank + 1) % ranks),
         dist.irecv(room, (rank - 1) % ranks)]
for work in works:
    work.wait()
assert torch.equal(room, torch.full((1000,), float((rank - 1) % ranks)))
pair = dist.new_group([0, ranks - 1])
if rank in (0, ranks - 1):
    data = torch.ones(5)
    dist.all_reduce(data, group=pair, async_op=True).get_future().wait()
    assert torch.equal(data, torch.full((5,), 2.0))
dist.barrier()
dist.destroy_process_group()
"""

# The last rank's host loses its wire. Every rank must say who is lost: a rank beyond the wire.
WIRE_PROGRAM = """
import os, subprocess, sys
import torch, torch.distributed as dist, tutti.torch
store, engine = sys.argv[1:]
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
dist.init_process_group("tutti", init_method=f"file://{store}", rank=rank, world_size=ranks)
dist.barrier()
if rank == ranks - 1:
    link = ["ip", "-n", os.environ["HOST"], "link", "set", "eth0", "down"]
    subprocess.run(link, check=True)
try:
    while True:
        dist.all_reduce(torch.ones(1000))
except dist.DistBackendError as error:
    words = str(error)
    far = "rank 0" if rank == ranks - 1 else f"rank {ranks - 1} "
    assert far in words and "silent for 2000 ms" in words, words
os._exit(0)  # the store lies in a folder that all see; nobody is left to say goodbye to
"""


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def can_make_namespaces():
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"tutti-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return made.returncode == 0


@unittest.skipUnless(can_make_namespaces(), "network namespaces need root and ip(8)")
class Hosts(unittest.TestCase):
    """Two namespaces joined by a cable: 10.77.0.1 and 10.77.0.2."""

    def setUp(self):
        self.hosts = [f"tutti-py-{os.getpid()}-{host}" for host in "ab"]
        self.addCleanup(self.remove_hosts)
        for host in self.hosts:
            ip("netns", "add", host)
            ip("-n", host, "link", "set", "lo", "up")
        a, b = self.hosts
        ip("link", "add", "eth0", "netns", a, "type", "veth", "peer", "name", "eth0", "netns", b)
        for number, host in enumerate(self.hosts, 1):
            ip("-n", host, "address", "add", f"10.77.0.{number}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "eth0", "up")

    def remove_hosts(self):
        for host in self.hosts:
            subprocess.run(["ip", "netns", "del", host], capture_output=True)

    def run_on(self, host_of_rank, engine, program=PROGRAM, environment=None):
        with tempfile.TemporaryDirectory() as folder:
            processes = []
            for rank, host in enumerate(host_of_rank):
                variables = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(len(host_of_rank)))
                variables |= {"MASTER_ADDR": "10.77.0.1", **(environment or {})}
                command = ["ip", "netns", "exec", self.hosts[host], sys.executable, "-c", program]
                processes.append(
                    subprocess.Popen(
                        [*command, f"{folder}/store", engine],
                        env=variables,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                )
            try:
                for rank, process in enumerate(processes):
                    _, words = process.communicate(timeout=LIMIT_S)
                    self.assertEqual(process.returncode, 0, f"rank {rank}: {words[-2000:]}")
            finally:
                for process in processes:
                    process.kill()

    def test_one_rank_a_host(self):
        self.run_on([0, 1], "tcp")

    def test_reached_by_the_store_of_tcp(self):
        program = PROGRAM.replace("file://{store}", "tcp://10.77.0.1:29517")
        self.run_on([0, 1], "tcp", program, {"MASTER_ADDR": ""})

    def test_nobody_says_how_hosts_are_reached(self):
        program = """
import os, sys, tutti.torch, torch.distributed as dist
try:
    dist.init_process_group("tutti", init_method=f"file://{sys.argv[1]}", rank=int(os.environ["RANK"]),
                            world_size=2)
except Exception as error:
    assert "rank 1 is on another host" in str(error) and "TUTTI_INTERFACE" in str(error), error
    sys.exit(0)
sys.exit("it went on")
"""
        self.run_on([0, 1], "tcp", program, {"MASTER_ADDR": ""})

    def test_two_ranks_a_host(self):
        self.run_on([0, 0, 1, 1], "hier")

    def test_unequal_hosts(self):
        self.run_on([0, 0, 1], "hier")

    @unittest.skipUnless(shutil.which("openssl"), "certificates are made by openssl(1)")
    def test_encrypted(self):
        with tempfile.TemporaryDirectory() as folder:
            key, certificate = f"{folder}/key.pem", f"{folder}/cert.pem"
            make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1"
            names = ["-subj", "/CN=tutti", "-keyout", key, "-out", certificate]
            subprocess.run([*make.split(), *names], check=True, capture_output=True)
            shutil.copy(certificate, f"{folder}/ca.pem")
            self.run_on([0, 0, 1], "hier", environment={"TUTTI_TLS": folder})
            os.remove(key)
            with self.assertRaisesRegex(AssertionError, "key.pem"):  # it is read, not passed over
                self.run_on([0, 1], "tcp", environment={"TUTTI_TLS": folder})

    def test_a_cut_wire_is_told_within_the_limit(self):
        """No reset is ever sent, and the limit of operations is half an hour."""
        environment = {"TUTTI_SILENCE_LIMIT": "2", "HOST": self.hosts[1]}
        self.run_on([0, 0, 1], "hier", WIRE_PROGRAM, environment)


if __name__ == "__main__":
    unittest.main()
