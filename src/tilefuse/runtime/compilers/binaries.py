"""Compiled kernels for a program's kernel codes: from the cache, or compiled in parallel, each distinct kernel once."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from tilefuse.base import trace
from tilefuse.base.errors import InternalError
from tilefuse.runtime.compilers.host import compile_host, compiler_command, host_key
from tilefuse.runtime.compilers.nvrtc import compile_cuda, cuda_key
from tilefuse.runtime.compilers.running import LONGEST_SLEEP_S, RunningCompilers, awaited, work_for
from tilefuse.runtime.spec import KernelCode
from tilefuse.runtime.stores.cache import CacheEntry, KernelCache
from tilefuse.runtime.stores.cache_key import CacheKey

KERNELS_PER_HOST_JOB = 12

Progress = Callable[[int, int], None]


def kernel_key(kernel: KernelCode, cxx: str = "") -> CacheKey:
    """The kernel's cache key. Raises: ToolchainError when its compiler is missing."""
    match kernel.target:
        case "cuda":
            return cuda_key(kernel)
        case "host":
            return host_key(kernel, compiler_command(cxx))
        case _:
            raise InternalError(f"kernel {kernel.name} is for an unknown target {kernel.target!r}")


class Begun:
    """CUDA kernels of one program that are compiled while the next ones are still printed. Threads work for it until `end`."""

    def __init__(self, cache: KernelCache, jobs: int = 0) -> None:
        """jobs: as for `build_kernels`."""
        self.futures: dict[str, Future[CacheEntry]] = {}
        self._cache = cache
        self._pool = ThreadPoolExecutor(jobs or os.cpu_count() or 1, thread_name_prefix="tilefuse-compile")

    def begin(self, kernel: KernelCode) -> None:
        """Starts compiling a kernel, unless the cache has it."""
        key = cuda_key(kernel)
        if key.digest not in self.futures and self._cache.get(key) is None:
            self.futures[key.digest] = self._pool.submit(self._built, key, kernel)

    def end(self) -> None:
        """Drops the compiles that have not begun; does not wait."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _built(self, key: CacheKey, kernel: KernelCode) -> CacheEntry:
        with self._cache.locked([key]):
            # Another process may have compiled it while this one waited.
            entry = self._cache.get(key)
            if entry is None:
                entry = compile_cuda(kernel)
                self._cache.put(key, entry)
        return entry


def build_kernels(kernels: Sequence[KernelCode], cache: KernelCache, *, jobs: int = 0, cxx: str = "",
                  progress: Progress | None = None, begun: Mapping[str, Future[CacheEntry]] | None = None) -> list[CacheEntry]:
    """One compiled entry for each kernel. Equal kernels are compiled once, also by several processes together.

    jobs: kernels or groups of kernels compiled at the same time; 0: one a processor. cxx: the C++ compiler ("": CXX, g++, clang++).
    `progress(done, total)` is told of the kernels that had to be compiled. An interrupt leaves the finished kernels in
    the cache and nothing half written.
    begun: kernels that are being compiled already, by digest (see `Begun`).
    Raises: ToolchainError when a compiler is missing or refuses a kernel.
    """
    keys = [kernel_key(k, cxx) for k in kernels]
    begun = begun or {}
    entries: dict[str, CacheEntry] = {}
    missing: dict[str, tuple[CacheKey, KernelCode]] = {}
    for key, kernel in zip(keys, kernels):
        digest = key.digest
        entry = entries.get(digest) or (cache.get(key) if digest not in begun else None)
        if entry is None:
            missing[digest] = (key, kernel)
        else:
            entries[digest] = entry
    now = trace.current()
    now.event("kernel cache", "cache", kernels=len(kernels), missing=[key.label for key, _ in missing.values()])
    if missing:
        if now.shows("cache"):
            for key, _ in missing.values():
                now.line("cache", cache.why(key))
        with now.span("compile kernels", "cache", kernels=len(missing)):
            others = [pair for digest, pair in missing.items() if digest not in begun]
            entries |= _compile_locked(others, cache, jobs, cxx, progress)
            entries |= {digest: awaited(begun[digest]) for digest in missing if digest in begun}
    return [entries[key.digest] for key in keys]


def _compile_locked(missing: Sequence[tuple[CacheKey, KernelCode]], cache: KernelCache, jobs: int, cxx: str,
                    progress: Progress | None) -> dict[str, CacheEntry]:
    """Kernels that the cache did not have, each compiled by one process alone; entries by digest."""
    if not missing:
        return {}
    with cache.locked(key for key, _ in missing):
        # Another process may have compiled some while this one waited.
        waited = [(pair, cache.get(pair[0])) for pair in missing]
        uncompiled = [pair for pair, entry in waited if entry is None]
        entries = {key.digest: entry for (key, _), entry in waited if entry is not None}
        return entries | _compile_all(uncompiled, cache, jobs or os.cpu_count() or 1, cxx, progress)


def _compile_all(uncompiled: Sequence[tuple[CacheKey, KernelCode]], cache: KernelCache, jobs: int, cxx: str,
                 progress: Progress | None) -> dict[str, CacheEntry]:
    """Compiles and keeps the kernels; entries by digest."""
    groups = _host_groups([p for p in uncompiled if p[1].target == "host"], jobs) + [[p] for p in uncompiled if p[1].target != "host"]
    finished: dict[str, CacheEntry] = {}

    def work(group: Sequence[tuple[CacheKey, KernelCode]]) -> list[tuple[CacheKey, CacheEntry]]:
        kernels = [kernel for _, kernel in group]
        entries = compile_host(kernels, compiler_command(cxx)) if kernels[0].target == "host" else [compile_cuda(kernels[0])]
        done = list(zip((key for key, _ in group), entries))
        for key, entry in done:
            cache.put(key, entry)
        return done

    if not groups:
        return finished
    if len(groups) == 1:
        finished = {key.digest: entry for key, entry in work(groups[0])}
        if progress:
            progress(len(finished), len(uncompiled))
        return finished
    running = RunningCompilers()
    # The pool is left last: its threads end with their compilers.
    with ThreadPoolExecutor(min(jobs, len(groups)), "tilefuse-compile", work_for, (running,)) as pool:
        try:
            waiting = {pool.submit(work, group) for group in groups}
            while waiting:
                ended, waiting = wait(waiting, LONGEST_SLEEP_S, FIRST_COMPLETED)
                for future in ended:
                    finished.update({key.digest: entry for key, entry in future.result()})
                    if progress:
                        progress(len(finished), len(uncompiled))
        finally:
            # After an error or an interrupt the jobs not begun are dropped, and compilers end; finished ones are in the cache.
            pool.shutdown(wait=False, cancel_futures=True)
            running.end()
    return finished


def _host_groups(pairs: Sequence[tuple[CacheKey, KernelCode]], jobs: int) -> list[list[tuple[CacheKey, KernelCode]]]:
    """Host kernels in jobs of similar text length, at most KERNELS_PER_HOST_JOB each, no entry name twice in one."""
    if not pairs:
        return []
    num_groups = max(min(jobs, len(pairs)), -(-len(pairs) // KERNELS_PER_HOST_JOB))
    groups: list[list[tuple[CacheKey, KernelCode]]] = [[] for _ in range(num_groups)]
    for pair in sorted(pairs, key=lambda p: (-len(p[1].source), p[1].name)):
        free = [g for g in groups if all(k.entry != pair[1].entry and k.flags == pair[1].flags for _, k in g)]
        if free:
            min(free, key=lambda g: sum(len(k.source) for _, k in g)).append(pair)
        else:
            groups.append([pair])
    return [g for g in groups if g]
