"""Hosts h0 and h1 for sessions on several: network namespaces with a link between them. Needs root and iproute2."""

import os
import pathlib
import shutil
import subprocess

ADDRESSES = {"h0": "10.78.0.1", "h1": "10.78.0.2"}


def possible():
    return os.geteuid() == 0 and shutil.which("ip") is not None


class Hosts:
    """There for as long as it is open; the names are known on both."""

    def __enter__(self):
        self.spaces = {host: f"tuttidoc{os.getpid()}{host}" for host in ADDRESSES}
        try:
            for space in self.spaces.values():
                sh("ip", "netns", "add", space)
                names = pathlib.Path("/etc/netns", space, "hosts")  # in place of /etc/hosts there
                names.parent.mkdir(parents=True)
                names.write_text("127.0.0.1 localhost\n" + "".join(f"{a} {h}\n" for h, a in ADDRESSES.items()))
            one, other = self.spaces.values()
            sh("ip", "-n", one, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", other)
            for host, space in self.spaces.items():
                sh("ip", "-n", space, "addr", "add", f"{ADDRESSES[host]}/24", "dev", "eth0")
                for device in ("eth0", "lo"):
                    sh("ip", "-n", space, "link", "set", device, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def on(self, number):
        """What a command of host `number` begins with."""
        return ["ip", "netns", "exec", self.spaces[f"h{number}"]]

    def __exit__(self, *_):
        for space in self.spaces.values():
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
            shutil.rmtree(pathlib.Path("/etc/netns", space), ignore_errors=True)


def sh(*words):
    subprocess.run(words, check=True, capture_output=True, text=True)
