"""What the tests of hostile files share: runs with bounded memory and time, small files of every kind, and mutations of them."""

import json
import resource
import struct
import subprocess

from harness import PROGRAM, CliTest, run

MEMORY = 3 << 30  # bytes of address space; the program takes less than 1 GiB for itself
PROCESSOR_SECONDS = 60  # far above what any of these runs takes; unlike the time on the wall, it does not depend on other programs
SECONDS = 600  # for a program that waits

CONFIG = {"model_type": "cyclic_flow_attention", "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 8, "num_slots": 8,
          "vocab_size": 258, "intermediate_size": 24, "bos_token_id": 256, "eos_token_id": 257, "tokenizer": "bytes"}


def limit_time():
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS))


def limit_memory():
    limit_time()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def can_be_limited():
    """Not under the address sanitizer, which reserves terabytes of addresses."""
    result = subprocess.run([PROGRAM, "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=limit_memory)
    return result.returncode == 0


LIMITED = can_be_limited()


def run_bounded(*arguments):
    command = [PROGRAM, *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=SECONDS, encoding="utf-8", errors="replace",
                          preexec_fn=limit_memory if LIMITED else limit_time)


def zstd(*blocks, last=None):
    """A zstd frame of stored blocks. `last` replaces the header of a last block (3 bytes) by these."""
    frame = struct.pack("<IBB", 0xFD2FB528, 0, 0x38)  # no checksum, a window of 128 KiB
    for i, block in enumerate(blocks):
        final = last is None and i + 1 == len(blocks)
        frame += struct.pack("<I", len(block) << 3 | int(final))[:3] + block
    return frame + (last or b"")


def field(number, value):
    """A field of a protocol buffer: bytes, an integer or a float."""

    def varint(n):
        out = b""
        while n > 127:
            out, n = out + bytes([n & 127 | 128]), n >> 7
        return out + bytes([n])

    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def sentencepiece(model_type=2, pieces=(), normalizer=b""):
    """A SentencePiece model of bytes, letters and the given pieces."""

    def piece(text, score, kind):
        return field(1, field(1, text) + field(2, score) + field(3, kind))

    out = piece(b"<unk>", 0.0, 2) + piece(b"<s>", 0.0, 3) + piece(b"</s>", 0.0, 3)
    out += b"".join(piece(b"<0x%02X>" % i, 0.0, 6) for i in range(256))
    words = ["\u2581", *"abcdefghijklmnopqrstuvwxyz", "th", "the", "\u2581the", *pieces]
    out += b"".join(piece(word.encode(), -float(i), 1) for i, word in enumerate(words))
    trainer = field(3, model_type) + field(35, 1)
    normalizer = normalizer or field(1, b"identity") + field(3, 1) + field(4, 0) + field(5, 1)
    return out + field(2, trainer) + field(3, normalizer)


class HostileTest(CliTest):
    def model(self, name="model", **keys):
        """A checkpoint with random parameters."""
        config = self.folder / f"{name}.json"
        config.write_text(json.dumps({**CONFIG, **keys}))
        self.check(run("init", config, self.folder / name), 0)
        return self.folder / name

    def data(self, name="data", text="all work and no play makes jack a dull boy. " * 40):
        """A folder of tokens."""
        path = self.folder / f"{name}.txt"
        path.write_text(text)
        self.check(run("prepare", self.folder / name, path), 0)
        return self.folder / name

    def unfinished(self, name="unfinished"):
        """The folder and the input of a `cyfa prepare` that stopped at damage, after some shards."""
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": f"document {i} " * 20}) + "\n" for i in range(200)) + "damage\n")
        self.check(run("prepare", self.folder / name, path, "--shard-tokens", 5000, "--bad", "stop"), 2)
        self.assertTrue((self.folder / name / "progress.json").exists())
        return [self.folder / name, path, "--shard-tokens", 5000]

    def training(self, name="run", steps=2):
        """The folder of a training run, and the keys with which it goes on for a step."""
        keys = [f"model={self.model(name + '-model') / 'config.json'}", f"data={self.data(name + '-data')}", "batch=2", "context=16",
                "warmup=1", "log_every=1"]
        self.check(run("train", self.folder / name, *keys, f"steps={steps}"), 0)
        return self.folder / name, [*keys, f"steps={steps + 1}"]
