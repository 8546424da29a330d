"""Prints kernel IR as one self-contained CUDA C++ source, for NVRTC (without an include path) and for nvcc.

The printer decides nothing: the kernel IR states widths, guards and barriers. The source contains the support functions that it uses.
"""
from __future__ import annotations

from collections.abc import Sequence

from tilefuse.base.errors import InternalError
from tilefuse.ir.affine import Affine
from tilefuse.ir.ops import C_TYPES
from tilefuse.kernel.asynchronous import AsyncCopy, AsyncGroup, AsyncWait, AwaitEarlier, BulkCopy, BulkWait, LetNextStart, Prefetch
from tilefuse.kernel.checked_index import assertion_text, has_checks
from tilefuse.kernel.early import PAST_CACHE_BYTES, waits_inside
from tilefuse.kernel.expression import ExpressionPrinter, IndexScope
from tilefuse.kernel.ir import (
    Assign,
    Atomic,
    Barrier,
    Buffer,
    ClusterLoad,
    ClusterStore,
    Comment,
    Declare,
    For,
    FromMemory,
    Group,
    If,
    IfValue,
    InRange,
    Kernel,
    KExpr,
    LastBlock,
    Let,
    Load,
    MatrixProduct,
    OfTwo,
    Pointer,
    Reg,
    Renew,
    RoutineCall,
    Shuffle,
    Stmt,
    Store,
    VectorLoad,
    VectorStore,
)
from tilefuse.kernel.operand_table import find_member, operand_place, operand_table
from tilefuse.kernel.pipeline import (
    TILE_ALIGNMENT_BYTES,
    Consume,
    EachWarpgroup,
    InTurn,
    Pipeline,
    Produce,
    ReleaseSlots,
    SkipSlots,
    WarpgroupProduct,
    WarpgroupWait,
)
from tilefuse.kernel.pipeline_roles import without_roles
from tilefuse.kernel.pipeline_rules import check_pipeline
from tilefuse.kernel.routine_text import routine_namespaces
from tilefuse.kernel.tasks.statements import Await, Publish
from tilefuse.kernel.tasks.tables import changed_slots
from tilefuse.kernel.tensor_map import ProxyFence, TensorCopy, TensorStore, TensorStoreWait
from tilefuse.kernel.visit import index_names, may_alias_itself, parts, written_buffers
from tilefuse.kernel.writer import Writer, comment_text, identifier
from tilefuse.printers import support
from tilefuse.printers.cuda_pipeline import CudaPipeline, check_device
from tilefuse.printers.cuda_tasks import await_text, awaits_text, publish_text, task_loop, task_operands
from tilefuse.printers.rounded_pairs import rounded_pair
from tilefuse.printers.tensor_copies import cuda_copy, cuda_parameter, cuda_store, cuda_store_wait
from tilefuse.target.device import DeviceSpec


def print_cuda(kernel: Kernel, device: DeviceSpec) -> str:
    """CUDA C++ of `kernel`: `extern "C" __global__ void name(T* p0, ...)`, one pointer a global buffer, in order, then its sizes,
    then its tensor maps.

    Requires: launched with kernel.launch (grid, block, cluster dimension, dynamic shared memory).
    Exact: equal kernel and device give the same text.
    """
    head, body = _printed(kernel, device)
    pasted = support.paste("cuda", body)
    return head + "\n" + (pasted + "\n\n" if pasted else "") + body


def print_cuda_together(kernels: Sequence[Kernel], device: DeviceSpec) -> str:
    """CUDA C++ of several kernels with different names, each in its own namespace. The kernels share one support text."""
    printed = [_printed(kernel, device) for kernel in kernels]
    pasted = support.paste("cuda", "\n".join(body for _, body in printed))
    parts = [f"namespace {kernel.name}_of {{\n{head}{body}}}  // namespace {kernel.name}_of\n"
             for kernel, (head, body) in zip(kernels, printed, strict=True)]
    return "\n\n".join(([pasted] if pasted else []) + parts)


def _printed(kernel: Kernel, device: DeviceSpec) -> tuple[str, str]:
    """(comment lines, the function and its routines)."""
    check_pipeline(kernel)
    check_device(kernel, device)
    printer = _CudaPrinter(kernel, device)
    printer.kernel_function()
    head = Writer()
    launch = kernel.launch
    count = "" if kernel.blocks is not None else f"{launch.num_blocks} "
    head.comment(f"{kernel.name}: {count}blocks of {launch.num_threads} threads"
                 + (f", {'scattered ' if launch.scattered else ''}clusters of {launch.cluster}" if launch.cluster > 1 else "")
                 + (f", {launch.shared_bytes} bytes of shared memory" if launch.shared_bytes else "") + f", for {device.arch}")
    for text in kernel.header:
        head.comment(text)
    return head.text(), routine_namespaces(kernel) + printer.out.text()


class _CudaPrinter:
    """State of one kernel's printing."""

    def __init__(self, kernel: Kernel, device: DeviceSpec) -> None:
        self.kernel = kernel
        self.device = device
        self.out = Writer()
        self.scope = IndexScope(kernel)
        self.buffers = kernel.addressed
        self.written = written_buffers(kernel)
        self.aliased = may_alias_itself(kernel)
        self.changed = changed_slots(kernel)
        self.pipeline = CudaPipeline(self)
        self.sites: dict[str, int] = {}  # numbers of the assertion texts on indices
        self.expressions = ExpressionPrinter(self.scope, "cuda", self._load, self._register, self._checked, kernel.narrow)

    def kernel_function(self) -> None:
        """Prints the `__global__` function."""
        launch, out = self.kernel.launch, self.out
        # A role can take registers from another only if the kernel's own number of registers is bounded.
        has_roles = self.kernel.pipeline is not None and self.kernel.pipeline.consumer_registers
        min_blocks = self.kernel.min_blocks or (1 if has_roles else 0)
        bound = f"{launch.num_threads}, {min_blocks}" if min_blocks else str(launch.num_threads)
        if self.kernel.tasks is not None:
            parameters = task_operands(self.kernel, self.scope.index_type, out)
        elif self.kernel.groups:
            parameters = operand_table(self.kernel, self.scope.index_type, out)
        else:
            sizes = (f"const {self.scope.index_type} {identifier(s.name)}" for s in self.kernel.sizes)
            maps = map(cuda_parameter, self.kernel.maps)
            parameters = ",\n    ".join((*(self._parameter(b) for b in self.kernel.parameters), *sizes, *maps))
        with out.block(f'extern "C" __global__ void __launch_bounds__({bound})\n{self.kernel.name}(\n    {parameters})'):
            self._prologue()
            if has_checks(self.kernel):
                self.out.line("int tf_fault = 0;")
            if self.kernel.tasks is not None:
                task_loop(self)
            else:
                self.body(self.kernel.body)
            self._assertion()

    def _assertion(self) -> None:
        """Prints the assertion on the thread's indices, at the end of the thread.

        Beside a call of a function, as an assertion is one, the assembler waits for each warpgroup product before it starts the next.
        Kernels with such products trap: the context ends in the same way, with a launch failure that names no index.
        """
        texts = [f'"{text}"' for text in self.sites]
        if texts and any(isinstance(p, WarpgroupProduct) for p in parts(self.kernel.body)):
            for text in self.sites:
                self.out.comment(text)
            self.out.line("if (tf_fault) __trap();")
        elif texts:
            chosen = "".join(f"tf_fault == {n + 1} ? {text} : " for n, text in enumerate(texts[:-1])) + texts[-1]
            self.out.line(f"if (tf_fault) tf_out_of_range({chosen});")

    def _parameter(self, b: Buffer) -> str:
        return f"{''.join(self.pointer(b))} {identifier(b.name)}"

    def pointer(self, b: Buffer) -> tuple[str, str]:
        """Type of the pointer to a buffer, and `__restrict__` if the buffer has no alias."""
        read_only = b.name not in self.written
        aliased = b.name in self.aliased or b.name in self.changed
        return f"{'const ' if read_only else ''}{C_TYPES[b.dtype.name]}*", "" if aliased else " __restrict__"

    def _prologue(self) -> None:
        index = self.scope.index_type
        used = index_names(self.kernel.body)
        if self.kernel.pipeline is not None and "thread" not in index_names(without_roles(self.kernel.body)):
            used -= {"thread"}
        # The GPU starts blocks in the order of their numbers. The host has no such order and ignores `backwards`.
        block = f"{self.kernel.launch.num_blocks - 1} - blockIdx.x" if self.kernel.backwards else "blockIdx.x"
        cluster = max(self.kernel.launch.cluster, 1)
        rank = f"({block}) % {cluster}" if self.kernel.launch.scattered else "tf_cluster_rank()"
        for name, text in (("thread", "threadIdx.x"), ("block", block), ("rank", rank), ("cluster", f"({block}) / {cluster}")):
            if name in used and (name != "block" or not self.kernel.groups):
                self.out.line(f"const {index} {name} = {text};" if self.kernel.launch.cluster > 1 or name != "rank"
                              else f"const {index} rank = 0;")
        shared = [b for b in self.kernel.buffers if b.space == "shared"]
        if shared:
            alignment = TILE_ALIGNMENT_BYTES if self.pipeline.swizzled else 128
            self.out.line(f"extern __shared__ __align__({alignment}) unsigned char tf_shared[];")
        for b in shared:
            ctype = C_TYPES[b.dtype.name]
            place = f"tf_shared + {b.offset_bytes}" if b.offset_bytes else "tf_shared"
            self.out.line(f"{ctype}* const {identifier(b.name)} = reinterpret_cast<{ctype}*>({place});"
                          + (f"  // %{comment_text(b.origin)}" if b.origin else ""))
        if self.kernel.num_barriers:
            self.out.line(f"__shared__ __align__(8) unsigned long long tf_arrivals[{self.kernel.num_barriers}];")
            self.out.line(f"tf_bulk_init(tf_arrivals, {self.kernel.num_barriers});")
        for m in self.kernel.maps:
            self.out.line(f"tf_tensor_prefetch({identifier(m.name)});")
        if self.kernel.pipeline is not None:
            self.pipeline.make_barriers(self.kernel.pipeline)
        in_roles = self.kernel.pipeline is not None and self.kernel.pipeline.early
        if self.kernel.launch.early and not in_roles and not waits_inside(self.kernel):
            self.out.line("tf_wait_for_earlier_kernel();")

    def _checked(self, e: InRange, index: str) -> str:
        if self.kernel.checked:
            site = self.sites.setdefault(assertion_text(self.kernel, e), len(self.sites) + 1)
            return f"tf_in_range({index}, {e.extent}ll, tf_fault, {site}, {str(e.kept).lower()})"
        return index if e.kept else f"tf_minimum(tf_maximum({index}, 0ll), {max(e.extent - 1, 0)}ll)"

    def _register(self, r: Reg) -> str:
        name = identifier(r.name)
        return name if r.index is None else f"{name}[{self.scope.text(r.index)}]"

    def _load(self, e: Load) -> str:
        place = self._memory(e.buffer, self.expressions.address(e.index, e.dynamic))
        if e.buffer in self.changed:
            return f"tf_load_changed(&{place})"
        if e.cache == "stream" and self.buffers[e.buffer].space == "global" and e.buffer not in self.written:
            return f"tf_load_stream(&{place})"
        return place

    def _memory(self, buffer: str, address: str) -> str:
        """An element of a buffer as an lvalue."""
        swizzle = self.pipeline.swizzled.get(buffer)
        return f"*tf_swizzled<{swizzle}>({identifier(buffer)}, {address})" if swizzle else f"{identifier(buffer)}[{address}]"

    def body(self, body: tuple[Stmt, ...]) -> None:
        """Prints the statements of one scope."""
        arrays = self.pipeline.arrays
        depth = len(arrays)
        with self.scope.nested():
            waiting = list(reversed(body))
            while waiting:
                s = waiting.pop()
                if isinstance(s, Await) and waiting and isinstance(waiting[-1], Await):
                    waits = [s]
                    while waiting and isinstance(following := waiting[-1], Await):
                        waits.append(following)
                        waiting.pop()
                    for line in awaits_text(self, waits):
                        self.out.line(line)
                    continue
                pair = rounded_pair(s, waiting[-1], self.expressions.text, self.scope.operand) if waiting else ""
                if pair:
                    self.out.line(pair)
                    waiting.pop()
                else:
                    self.statement(s)
        del arrays[depth:]

    def statement(self, s: Stmt) -> None:
        """Prints one statement."""
        out, scope = self.out, self.scope
        match s:
            case Comment(text):
                out.comment(text)
            case Let(name, FromMemory(value), extent):
                out.line(f"const {scope.index_type} {identifier(name)} = ({scope.index_type}){self.expressions.text(value)};")
                scope.extents[name] = extent
            case Let(name, (Affine() | OfTwo()) as value, extent):
                out.line(f"const {scope.index_type} {identifier(name)} = {scope.value_text(value)};")
                scope.extents[name] = extent
            case Declare():
                self._declare(s)
            case Assign(target, value):
                out.line(f"{self._register(target)} = {self.expressions.text(value)};")
            case For():
                self._loop(s)
            case If(facts, inner, other):
                with out.block(f"if ({scope.condition(facts)})"), scope.assuming(facts):
                    self.body(inner)
                if other:
                    with out.otherwise():
                        self.body(other)
            case IfValue(condition, inner):
                with out.block(f"if ({self.expressions.text(condition)})"):
                    self.body(inner)
            case Group():
                self._group(s)
            case (Pipeline() | Produce() | Consume() | EachWarpgroup() | InTurn() | SkipSlots() | ReleaseSlots() | WarpgroupProduct()
                  | WarpgroupWait()):
                self.pipeline.statement(s)
            case LetNextStart():
                out.line("tf_let_next_kernel_start();")
            case AwaitEarlier():
                if self.kernel.launch.early:
                    out.line("tf_wait_for_earlier_kernel();")
            case _:
                out.line(self._access(s))

    def _group(self, group: Group) -> None:
        """Prints the branch of a group's blocks: each looks up its member, and that member's operands and numbers."""
        number = self.kernel.groups.index(group)
        end = group.first_block + group.num_blocks
        where = f"if (blockIdx.x < {end})" if number == 0 else f"else if (blockIdx.x < {end})"
        with self.out.block(where if number + 1 < len(self.kernel.groups) else "else" if number else ""), self.scope.nested():
            self.scope.enter_group(group)
            find_member(group, number, f"({self.scope.index_type})blockIdx.x", self.scope.index_type, self.out)
            first = sum(len(g.slots) * len(g.members) for g in self.kernel.groups[:number])
            for n, slot in enumerate(group.slots):
                pointer, restrict = self.pointer(slot)
                source = f"static_cast<{pointer}>(tf_operands.at[{operand_place(group, first, n)}])"
                self.out.line(f"{pointer}{restrict} const {identifier(slot.name)} = {source};")
            self.expressions.narrow = group.narrow
            self.body(group.body)

    def _access(self, s: Stmt) -> str:
        match s:
            case VectorLoad(buffer=buffer) | VectorStore(buffer=buffer) if buffer in self.pipeline.swizzled:
                return self._swizzled_vector(s, self.pipeline.swizzled[buffer])
            case VectorLoad(array, at, buffer, index, width, cache, dynamic):
                has_hint = cache in ("stream", "last") and self.buffers[buffer].space == "global" and buffer not in self.written
                place = f"{identifier(buffer)} + {self.expressions.address(index, dynamic)}" if dynamic else self._element(buffer, index)
                if buffer in self.changed:
                    return f"tf_vector_load_changed<{width}>({self._element(array, at)}, {place});"
                return f"tf_vector_load{f'_{cache}' if has_hint else ''}<{width}>({self._element(array, at)}, {place});"
            case VectorStore(buffer, index, array, at, width, cache):
                stream = cache == "stream" and self.buffers[buffer].space == "global"
                return f"tf_vector_store{'_stream' if stream else ''}<{width}>({self._element(buffer, index)}, {self._element(array, at)});"
            case Store(buffer, index, value, dynamic, cache):
                place = self._memory(buffer, self.expressions.address(index, dynamic))
                text = self.expressions.text(value)
                if cache == "stream" and self.buffers[buffer].space == "global":
                    return f"tf_store_stream(&{place}, {text});"
                return f"{place} = {text};"
            case Atomic(op, buffer, index, value, dynamic):
                place = self._memory(buffer, self.expressions.address(index, dynamic))
                return f"tf_atomic_{op}(&{place}, {self.expressions.text(value)});"
            case MatrixProduct():
                return self._product(s)
            case AsyncCopy(shared, shared_index, buffer, index, num_elements):
                num_bytes = num_elements * self.buffers[buffer].dtype.itemsize
                if buffer in self.changed and num_bytes < PAST_CACHE_BYTES:
                    return f"tf_copy_changed<{num_bytes}>({self._element(shared, shared_index)}, {self._element(buffer, index)});"
                return f"tf_async_copy<{num_bytes}>({self._element(shared, shared_index)}, {self._element(buffer, index)});"
            case AsyncGroup():
                return "tf_async_group();"
            case Prefetch(buffer, index):
                return f"tf_prefetch({self._element(buffer, index)});"
            case Renew(array):
                return f"tf_renew({identifier(array)});"
            case AsyncWait(pending):
                return f"tf_async_wait<{pending}>();"
            case TensorCopy():
                return cuda_copy(self.kernel, s, self._start(s.buffer, s.index), self.scope, self.pipeline.full)
            case TensorStore():
                return cuda_store(self.kernel, s, self._start(s.buffer, s.index), self.scope)
            case TensorStoreWait():
                return cuda_store_wait(s)
            case ProxyFence():
                return "tf_proxy_fence();"
            case RoutineCall(function, arguments):
                return f"{function}({', '.join(self._argument(a) for a in arguments)});"
        return self._synchronisation(s)

    def _swizzled_vector(self, s: VectorLoad | VectorStore, swizzle: int) -> str:
        array, place = self._element(s.array, s.array_index), self.scope.text(s.index)
        if isinstance(s, VectorLoad):
            address = self.expressions.address(s.index, s.dynamic)
            return f"tf_swizzled_load<{swizzle}, {s.width}>({array}, {identifier(s.buffer)}, {address});"
        return f"tf_swizzled_store<{swizzle}, {s.width}>({identifier(s.buffer)}, {place}, {array});"

    def _argument(self, a: Pointer | Reg | Affine | KExpr) -> str:
        match a:
            case Pointer(buffer, index):
                return self._element(buffer, index)
            case Reg(name, _, index) if index is not None:
                return self._element(name, index)
            case Affine():
                return self.scope.text(a)
        return self.expressions.text(a)

    def _product(self, s: MatrixProduct) -> str:
        left_turned, right_turned = (str(t).lower() for t in (s.left_turned, s.right_turned))
        right = f"{self._element(s.right, s.right_index)}, {s.right_stride}"
        if s.arithmetic:
            return self._product_of_f32(s, right)
        if s.left_registers:
            called = f"tf_held_product<{s.tiles_m}, {s.tiles_n}, {right_turned}, {s.inner}>"
            return f"{called}({identifier(s.accumulator)}, {identifier(s.left)}, {right});"
        called = f"tf_matrix_product<{s.tiles_m}, {s.tiles_n}, {left_turned}, {right_turned}, {s.inner}>"
        return f"{called}({identifier(s.accumulator)}, {self._element(s.left, s.left_index)}, {s.left_stride}, {right});"

    def _product_of_f32(self, s: MatrixProduct, right: str) -> str:
        left_pairs = not s.left_registers and s.inner % 2 == 0 and s.left_stride % 2 == 0 and _is_even(s.left_index)
        right_pairs = s.inner % 2 == 0 and s.right_stride % 2 == 0 and _is_even(s.right_index)
        facts = (s.left_registers, s.left_turned, left_pairs and not s.left_turned, s.right_turned, right_pairs and s.right_turned)
        flags = ", ".join(str(f).lower() for f in facts)
        called = (f"tf_f32_product<{3 if s.arithmetic == 'split' else 1}, {s.tiles_m}, {s.tiles_n}, {flags}, {s.columns or 8 * s.tiles_n}, "
                  f"{s.inner}>")
        left = f"{identifier(s.left)}, 0" if s.left_registers else f"{self._element(s.left, s.left_index)}, {s.left_stride}"
        return f"{called}({identifier(s.accumulator)}, {left}, {right});"

    def _synchronisation(self, s: Stmt) -> str:
        text = self.scope.text
        match s:
            case Barrier("cluster", signal, phase, num_bytes, team=team) if signal is not None and phase is not None:
                of_team = f"<{team}>" if team else ""
                return f"tf_cluster_receive{of_team}(tf_arrivals + {self.scope.operand(signal)}, {text(phase)}, {num_bytes});"
            case Barrier("cluster", team=team, counter=counter, index=index) if counter and index is not None:
                return f"tf_scattered_meet<{team}>({self._element(counter, index)}, {self.kernel.launch.cluster});"
            case Barrier(scope, memory=memory, loaded=loaded, team=team):
                if scope == "cluster" and self.kernel.launch.cluster > 1:
                    return "tf_cluster_barrier();" if memory else "tf_cluster_meet();"
                bits = " | ".join(f"tf_all_bits({identifier(name)})" for name in loaded)
                if self.pipeline.consumers:
                    return self.pipeline.barrier(s, bits)
                if team:
                    return f"tf_team_barrier_after<{team}>({bits});" if loaded else f"tf_team_barrier<{team}>();"
                return f"tf_block_barrier_after({bits});" if loaded else "__syncthreads();"
            case Shuffle(target, source, mode, amount, width):
                return f"{self._register(target)} = tf_shuffle_{mode}<{self._lane_mask()}>({self._register(source)}, {amount}, {width});"
            case ClusterLoad(target, buffer, index, rank):
                return f"{self._register(target)} = tf_cluster_load({self._element(buffer, index)}, {text(rank)});"
            case ClusterStore(buffer, index, rank, signal=signal) if signal is not None:
                values = ", ".join(map(self.expressions.text, s.values))
                called = "tf_cluster_send_four" if s.further else "tf_cluster_send"
                return (f"{called}({self._element(buffer, index)}, {text(rank)}, {values}, "
                        f"tf_arrivals + {self.scope.operand(signal)});")
            case ClusterStore(buffer, index, rank, value):
                return f"tf_cluster_store({self._element(buffer, index)}, {text(rank)}, {self.expressions.text(value)});"
            case Await():
                return await_text(self, s)
            case Publish():
                return publish_text(self, s)
            case LastBlock(target, counter, index, count):
                arrivals = text(count) if isinstance(count, Affine) else count
                of = f"_of_consumers<{self.pipeline.consumers}>" if self.pipeline.consumers else ""
                return f"{self._register(target)} = tf_last_block{of}({self._element(counter, index)}, {arrivals});"
            case BulkCopy(shared, shared_index, buffer, index, num_elements, barrier, arrive, team, cache):
                num_bytes = num_elements * self.buffers[buffer].dtype.itemsize
                of_team = f"<{team}>" if team else ""
                hint = "_last" if cache == "last" else ""
                return (f"tf_bulk_copy{hint}{of_team}({self._element(shared, shared_index)}, {self._element(buffer, index)}, {num_bytes}, "
                        f"tf_arrivals + {self.scope.operand(barrier)}, {'true' if arrive else 'false'});")
            case BulkWait(barrier, phase):
                return f"tf_bulk_wait(tf_arrivals + {self.scope.operand(barrier)}, {text(phase)});"
        raise InternalError(f"not a kernel statement: {s!r}")

    def _element(self, name: str, index: Affine) -> str:
        """Address of an element of a buffer or register array."""
        if name in self.pipeline.swizzled:
            return f"&{self._memory(name, self.scope.text(index))}"
        return self._start(name, index)

    def _start(self, name: str, index: Affine) -> str:
        """Address at which a tile starts; there the swizzle moves nothing."""
        text = self.scope.text(index)
        return identifier(name) if text == "0" else f"{identifier(name)} + {text}"

    def _lane_mask(self) -> str:
        """Lane mask of a shuffle: all existing threads of the warp."""
        threads = self.kernel.launch.num_threads
        return "0xffffffffu" if threads >= 32 else f"0x{(1 << threads) - 1:x}u"

    def _declare(self, s: Declare) -> None:
        ctype = C_TYPES[s.dtype.name]
        if s.size is not None:
            self.pipeline.arrays.append(s.name)
            self.out.line(f"alignas(16) {ctype} {identifier(s.name)}[{s.size}];")
        elif s.init is None:
            self.out.line(f"{ctype} {identifier(s.name)};")
        else:
            self.out.line(f"{ctype} {identifier(s.name)} = {self.expressions.text(s.init)};")

    def _loop(self, s: For) -> None:
        scope, var = self.scope, identifier(s.var)
        start, stop = scope.text(s.start), scope.text(s.stop)
        step = f"++{var}" if s.step == 1 else f"{var} += {scope.text(s.step) if isinstance(s.step, Affine) else s.step}"
        if s.unroll or s.rolled:
            self.out.directive("#pragma unroll" if s.unroll else "#pragma unroll 1")
        with self.out.block(f"for ({scope.index_type} {var} = {start}; {var} < {stop}; {step})"), scope.nested():
            scope.add_loop(s.var, s.start, s.stop)
            self.body(s.body)


def _is_even(index: Affine) -> bool:
    """Whether an index expression is even for all values of its names."""
    return index.const % 2 == 0 and all(c % 2 == 0 for _, c in index.terms)
