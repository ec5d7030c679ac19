"""flashattn.torch.context_parallel between processes over gloo, against one process in torch, float64. Skipped where torch is not
installed or libflashattn-cp is not found."""

import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback
import unittest

try:
    import torch
    import torch.distributed as dist
except ImportError:
    torch = None
else:
    from flashattn._context_parallel import context_parallel  # flashattn.torch, which has it, takes no old torch
    from flashattn._cp import cp_library
    from flashattn._transport import OrderedMessages
    from torch_reference import plain


def missing():
    """Why nothing can be tested here, or None."""
    if torch is None:
        return "torch is not installed"
    if not dist.is_available() or not dist.is_gloo_available():
        return "torch has no gloo"
    try:
        cp_library()
    except OSError as reason:
        return str(reason)
    return None


def old_torch():
    """Why a torch that flashattn.torch does not take, or that has one backend for a group, is not enough; or None."""
    if torch is None or hasattr(dist.ProcessGroup, "_get_backend"):
        return None
    return f"torch is {torch.__version__}, too old"


def on_processes(count, work):
    """Runs a function of this module in so many processes of one group. Returns what failed, by process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # torch, which takes seconds to import, is read once
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        processes = [context.Process(target=_process, args=(work, rank, count, store, answers)) for rank in range(count)]
        for process in processes:
            process.start()
        found = dict(answers.get(timeout=120) for _ in processes)
        for process in processes:
            process.join(60)
    return {rank: text for rank, text in found.items() if text}


def _process(work, rank, count, store, answers):
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
        globals()[work](rank, count)
        answers.put((rank, ""))
    except BaseException:
        answers.put((rank, traceback.format_exc()))


def near(name, a, b, limit=3e-5):
    error = (a.double() - b.double()).norm() / (b.double().norm() + 1e-30)
    if a.shape != b.shape or not error <= limit:
        raise AssertionError(f"{name} has shape {tuple(a.shape)} and error {error}: expected {tuple(b.shape)} and {limit}")


def whole(name, own, rows, length, dim=1):
    """All processes' rows, put together."""
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, (own.detach(), rows))
    shape = list(own.shape)
    shape[dim] = length
    out = own.new_full(shape, float("nan"))
    for part, at in parts:
        out.index_copy_(dim, at, part)
    return out


def every_method(rank, count, parallel=None):
    parallel = parallel or context_parallel
    torch.manual_seed(1)
    length, heads, heads_k, dim = 61, 2 * 4, 4, 16
    inputs = [torch.randn(2, length, n, dim) for n in (heads, heads_k, heads_k, heads)]
    sinks = torch.randn(heads)
    judge = [x.double().requires_grad_() for x in (*inputs[:3], sinks)]
    out, lse = plain(*judge[:3], causal=True, sinks=judge[3])
    ((out * inputs[3]).sum() + lse.sin().sum()).backward()
    for method in ("auto", "ulysses", "all-gather", "ring"):
        for layout in ("contiguous", "zigzag"):
            with parallel(method=method, layout=layout) as cp:
                rows = cp.rows(length)
                q, k, v = (cp.shard(x, 1).requires_grad_() for x in inputs[:3])
                own_sinks = sinks.clone().requires_grad_()
                given = {} if method == "auto" else {"length": length}
                o, own_lse = cp.attention(q, k, v, causal="top-left", sinks=own_sinks, return_lse=True, **given)
                if count > 1 and not cp.traffic()[0] > 0:
                    raise AssertionError("nothing was sent")
                ((o * cp.shard(inputs[3], 1)).sum() + own_lse.sin().sum()).backward()
                near("out", whole("out", o, rows, length), out)
                near("lse", whole("lse", own_lse, rows, length, 2), lse)
                for name, x, want in zip(("dq", "dk", "dv"), (q, k, v), judge):
                    near(f"{method} {layout} {name}", whole(name, x.grad, rows, length), want.grad)
                dist.all_reduce(own_sinks.grad)
                near("dsinks", own_sinks.grad, judge[3].grad)


def packed(rank, count, parallel=None):
    parallel = parallel or context_parallel
    torch.manual_seed(2)
    cu = torch.tensor([0, 17, 17, 60])
    q, k, v, dout = (torch.randn(60, 4, 16) for _ in range(4))
    judge = [x.double().requires_grad_() for x in (q, k, v)]
    parts = [plain(*(x[a:b][None] for x in judge), causal=True)[0][0] for a, b in zip(cu, cu[1:]) if b > a]
    (torch.cat(parts) * dout).sum().backward()
    for method in ("ulysses", "all-gather", "ring"):
        with parallel(method=method) as cp:
            rows = cp.rows(cu)
            own = [cp.shard(x, 0, cu).requires_grad_() for x in (q, k, v)]
            o = cp.attention(*own, causal="bottom-right", cu_seqlens_q=cu, cu_seqlens_k=cu)
            (o * cp.shard(dout, 0, cu)).sum().backward()
            near("out", whole("out", o, rows, 60, 0), torch.cat(parts))
            for name, x, want in zip(("dq", "dk", "dv"), own, judge):
                near(f"{method} {name}", whole(name, x.grad, rows, 60, 0), want.grad)


def fewer_rows_than_processes(rank, count, parallel=None):
    parallel = parallel or context_parallel
    torch.manual_seed(3)
    inputs = [torch.randn(1, 2, 4, 8) for _ in range(3)]
    judge = [x.double().requires_grad_() for x in inputs]
    out, _ = plain(*judge, causal=True)
    out.sum().backward()
    for method in ("all-gather", "ring"):
        with parallel(method=method, layout="contiguous") as cp:
            rows = cp.rows(2)
            own = [cp.shard(x, 1).requires_grad_() for x in inputs]
            o = cp.attention(*own, causal="top-left")
            o.sum().backward()
            near("out", whole("out", o, rows, 2), out)
            for x, want in zip(own, judge):
                near(method, whole(method, x.grad, rows, 2), want.grad)


def same_losses(rank, count):
    """Two layers learn a batch by heart: their losses on many processes are those on one."""

    def losses(attend, shard, spread):
        torch.manual_seed(4)
        layers = torch.nn.ModuleList(torch.nn.Linear(32, 96) for _ in range(2))
        positions = torch.nn.Embedding(48, 32)
        parameters = [*layers.parameters(), *positions.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=0.02)
        x, target, numbers = shard(torch.randn(2, 48, 32)), shard(torch.randn(2, 48, 32)), shard(torch.arange(48)[None])
        seen = []
        for _ in range(8):
            h = x + positions(numbers)
            for layer in layers:
                q, k, v = layer(h).unflatten(-1, (4, 24)).split(8, -1)
                h = h + attend(q, k, v).flatten(-2)
            loss = ((h - target) ** 2).sum() / (2 * 48 * 32)
            optimizer.zero_grad()
            loss.backward()
            for parameter in parameters if spread else ():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            seen.append(loss.detach())
        return torch.stack(seen)

    one = losses(lambda q, k, v: plain(q, k, v, causal=True)[0], lambda x: x, False)
    with context_parallel() as cp:
        many = losses(lambda q, k, v: cp.attention(q, k, v, causal="top-left", length=48), lambda x: cp.shard(x, 1), True)
    dist.all_reduce(many)
    near("losses", many, one, 1e-4)
    if not one[-1] < 0.9 * one[0]:
        raise AssertionError(f"nothing was learnt: {one}")


def refused(status, call):
    """status: a name, or the class of an exception of the package's own."""
    try:
        call()
    except Exception as failure:
        if status in (type(failure), getattr(failure, "status_name", None)):
            return
        raise
    raise AssertionError(f"expected {status}")


def faults(rank, count, parallel=None):
    parallel = parallel or context_parallel
    q = torch.randn(1, 8, 2, 8)
    for timeout in (1e300, float("nan"), -1):
        refused(ValueError, lambda: parallel(timeout=timeout))  # noqa: B023
    with parallel(dist.new_group(), timeout=20) as cp:
        causal = "top-left" if rank else None
        refused("FA_PEERS_DISAGREE", lambda: cp.attention(q, q, q, length=8 * count, causal=causal))
        wrong = "FA_INVALID_ARGUMENT" if rank == 0 else "FA_PEER_FAILED"
        refused(wrong, lambda: cp.attention(q, q, q, length=8 * count, chunk=-5 if rank == 0 else 0))
        wrong = ValueError if rank == 0 else "FA_PEER_FAILED"
        rows = q[:, rank == 0 :]  # the first process has one too few
        refused(wrong, lambda: cp.attention(rows, rows, rows, length=8 * count))
        slopes, wrong = torch.ones(2, requires_grad=rank == 0), NotImplementedError if rank == 0 else "FA_PEER_FAILED"
        refused(wrong, lambda: cp.attention(q, q, q, length=8 * count, alibi_slopes=slopes, alignment="top-left"))  # no gradient in silence
        refused(NotImplementedError, lambda: cp.attention(q, q, q, length=8 * count, scale=torch.ones(1, requires_grad=True)))
        cp.attention(q, q, q, length=8 * count)  # what was refused has broken nothing
    cp = parallel(dist.new_group(), timeout=1.5)
    if rank:  # the first process never comes
        refused("FA_TIMEOUT", lambda: cp.attention(q, q, q, length=8 * count))
        refused("FA_INVALID_STATE", lambda: cp.attention(q, q, q, length=8 * count))
    dist.barrier()


def in_order(rank, count):
    """All of it as on GPUs, in the order of a stream; on the CPU that is the thread itself."""

    class InOrder(context_parallel):
        def _make_messages(self):
            return OrderedMessages(self._group, self.device)

    every_method(rank, count, InOrder)
    packed(rank, count, InOrder)
    fewer_rows_than_processes(rank, count, InOrder)
    with InOrder() as cp:
        cp.synchronize()
    if count == 2:
        faults(rank, count, InOrder)


def on_gpus(rank, count):
    """Over NCCL, where there are as many GPUs."""
    torch.cuda.set_device(rank)
    group = dist.new_group(backend="nccl")
    torch.manual_seed(1)
    length = 96
    inputs = [torch.randn(1, length, n, 32, device="cuda") for n in (8, 4, 4, 8)]
    for x in inputs:
        dist.broadcast(x, 0, group=group)
    judge = [x.double().cpu().requires_grad_() for x in inputs[:3]]
    out, _ = plain(*judge, causal=True)
    (out * inputs[3].cpu()).sum().backward()
    for method in ("ulysses", "all-gather", "ring"):
        with context_parallel(group, method=method) as cp:
            rows = cp.rows(length)
            own = [cp.shard(x, 1).requires_grad_() for x in inputs[:3]]
            o = cp.attention(*own, causal="top-left", length=length)
            (o * cp.shard(inputs[3], 1)).sum().backward()
            cp.synchronize()
            near("out", whole("out", o.cpu(), rows, length), out)
            for name, x, want in zip(("dq", "dk", "dv"), own, judge):
                near(f"{method} {name}", whole(name, x.grad.cpu(), rows, length), want.grad)


@unittest.skipIf(missing(), missing())
class ContextParallel(unittest.TestCase):
    def test_every_method_gives_what_one_process_gives(self):
        for count in (1, 2, 4):
            with self.subTest(processes=count):
                self.assertEqual({}, on_processes(count, "every_method"))

    def test_packed_sequences(self):
        self.assertEqual({}, on_processes(2, "packed"))

    def test_processes_without_rows(self):
        self.assertEqual({}, on_processes(3, "fewer_rows_than_processes"))

    def test_a_model_learns_as_on_one_process(self):
        self.assertEqual({}, on_processes(3, "same_losses"))

    @unittest.skipIf(old_torch(), old_torch())
    def test_a_language_model_in_four_processes_has_the_losses_of_one(self):
        program = pathlib.Path(__file__).resolve().parents[3] / "examples" / "tiny_gpt" / "train_parallel.py"
        for method in ("ulysses", "ring"):
            command = [sys.executable, program, "--steps", "4", "--method", method]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_process_that_differs_fails_or_is_silent(self):
        self.assertEqual({}, on_processes(2, "faults"))

    @unittest.skipIf(old_torch(), old_torch())
    def test_in_the_order_of_a_stream(self):
        for count in (1, 2, 4):
            with self.subTest(processes=count):
                self.assertEqual({}, on_processes(count, "in_order"))

    def test_on_gpus_over_nccl(self):
        if torch.cuda.device_count() < 2 or not dist.is_nccl_available():
            self.skipTest("fewer than two GPUs, or torch without NCCL")
        self.assertEqual({}, on_processes(2, "on_gpus"))


if __name__ == "__main__":
    unittest.main()
