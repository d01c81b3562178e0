"""`Communicator`: collectives on arrays, with the same interface for all backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt

from meshlab.base._arguments import Arguments
from meshlab.base._errors import CommunicatorError
from meshlab.comm._agreement import CHECKS, Agreement, Checks, checksum
from meshlab.comm._backend import Backend, Call, CallChoice, CallConfig, Capabilities, Comparer
from meshlab.comm._batch import Batch
from meshlab.comm._call_cache import CallCache, checked_call
from meshlab.comm._catalog import CATALOG, Collective, find_collective
from meshlab.comm._choices import SizeChoices
from meshlab.comm._collectives import CollectiveMethods
from meshlab.comm._compositions import call_runner, prepare_batch, prepare_call, with_compositions
from meshlab.comm._monitor import Monitor
from meshlab.comm._prepared_call import PreparedCall
from meshlab.comm._streams import HOST_STREAM, Event, HostStream
from meshlab.comm._validate import OPTION_DEFAULTS, CallArguments, CallValidator, PreparedOptions, check_config
from meshlab.comm._windows import empty_symmetric, registered_symmetric

_OPTIONS = Arguments(PreparedOptions, OPTION_DEFAULTS)


class TorchSide(NamedTuple):
    """The part of torch on the rank of a communicator, from `meshlab.comm.backends._torch_world`."""

    mesh: Any  # torch's device mesh of the task, or None
    local: Callable[[Backend], AbstractContextManager[object]]


class Communicator(CollectiveMethods):
    """Collectives between the ranks of a group, on arrays in the memory of the backend (`xp`).

    Roots and peers are ranks of the group. All ranks of the group must issue the same calls in the same order.

    Parameters
    ----------
    backend : Backend
        This rank's endpoint in a library.
    name : str, default "world"
        Name of the group.
    ranks : sequence of int, optional
        Global ranks of the group, in order. By default 0, 1, …
    on_enter : callable, optional
        A function that is called before each operation of the complete group. Benchmarks use it to time functions.
    monitor : Monitor, optional
        An observer of the calls. The engines use it to report the call in which a rank is blocked.
    checks : {"first", "all", "off"}, default "first"
        The calls that are compared between ranks, described in `meshlab.comm.CHECKS`.
    comparer : Comparer, optional
        Compares the calls of the ranks. By default that of the backend. NCCL has none.

    Examples
    --------
    >>> import numpy as np
    >>> from meshlab.comm.backends._threads import ThreadWorld
    >>> comm = Communicator(ThreadWorld(1).backend(0))
    >>> comm.all_reduce(np.arange(3.0))
    array([0., 1., 2.])
    """

    def __init__(
        self,
        backend: Backend,
        *,
        name: str = "world",
        ranks: Sequence[int] | None = None,
        on_enter: Callable[[], None] | None = None,
        monitor: Monitor | None = None,
        checks: Checks = "first",
        comparer: Comparer | None = None,
    ) -> None:
        if checks not in CHECKS:
            raise CommunicatorError(f"unknown checks {checks!r}; choose one of {', '.join(CHECKS)}")
        comparer = backend.comparer() if comparer is None else comparer
        self._checks = checks
        self._comparer = comparer
        self._on_enter = on_enter
        self._monitor = monitor
        self._is_closed = False
        self._owner: Communicator | None = None  # the communicator of which this one is a view
        self._torch: TorchSide | None = None  # set by the engines
        self.backend = backend
        self.name = name
        self.rank = backend.rank
        self.size = backend.size
        self.ranks: tuple[int, ...] = tuple(ranks) if ranks is not None else tuple(range(backend.size))
        self._cache = CallCache(backend)
        if len(self.ranks) != self.size:
            raise CommunicatorError(
                f"group {name!r} was given {len(self.ranks)} ranks, but its communicator has {self.size}; pass one "
                "global rank per member",
                group=name,
            )
        self._agreement = (
            None
            if comparer is None or checks == "off"
            else Agreement(comparer, checks, backend.blocks, self.name, self.ranks)
        )

    @property
    def xp(self) -> Any:
        """The array module of the backend: numpy, or cupy on GPUs."""
        return self.backend.xp

    @property
    def world_rank(self) -> int:
        """The global rank."""
        return self.ranks[self.rank]

    @property
    def torch_mesh(self) -> Any:
        """Torch's ``DeviceMesh`` of the mesh of this task, after `meshlab.Engines.torch`.

        Its groups are those of meshlab's mesh, and torch's default process group has all ranks.

        Raises
        ------
        CommunicatorError
            If the engines have not opened torch on the mesh.

        Examples
        --------
        >>> import meshlab as ml
        >>> with ml.launch(1, backend="threads") as engines:
        ...     print(engines.run(lambda comm: comm.torch_mesh, check=False)["error"][0])
        CommunicatorError: torch has no mesh in this task; call engines.torch(mesh) first, and pass the same mesh to the
        task
        """
        torch = self._root._torch
        if torch is None or torch.mesh is None:
            raise CommunicatorError(
                "torch has no mesh in this task",
                hint="call engines.torch(mesh) first, and pass the same mesh to the task",
                group=self.name,
            )
        return torch.mesh

    @contextmanager
    def local(self) -> Iterator[None]:
        """Order array operations in the block, of torch as well, with the calls before and after it."""
        torch = self._root._torch
        with self.backend.local():
            if torch is None:
                yield
            else:
                with torch.local(self.backend):
                    yield

    def to_host(self, array: Any) -> npt.NDArray[Any]:
        """Copy an array to host memory, after all earlier calls.

        Unlike in ``array.get()`` of CuPy, the wait ends with an error if another rank dies.

        Parameters
        ----------
        array : numpy.ndarray or cupy.ndarray
            The array. An array in host memory is returned unchanged.

        Returns
        -------
        numpy.ndarray
            The elements.

        Raises
        ------
        CommunicatorError
            If the communicator was aborted.

        Examples
        --------
        >>> import meshlab as ml
        >>> def total(comm):
        ...     return int(comm.to_host(comm.all_reduce(comm.xp.ones(3)))[0])
        >>> with ml.launch(2, backend="threads") as engines:
        ...     engines.run(total)["value"].tolist()
        [2, 2]
        """
        wait_idle = getattr(self.backend, "wait_idle", None)
        if wait_idle is not None:
            wait_idle()
        return np.asarray(array.get() if hasattr(array, "get") else array)

    def empty(self, shape: int | tuple[int, ...], dtype: Any, *, symmetric: bool = False) -> Any:
        """Return an uninitialised array in the memory that the library transfers fastest.

        On GPUs, NCCL allocates memory that other GPUs can map. Other arrays of `xp` may be slower. Allocate such an
        array once and reuse it, because it takes a multiple of 2 MiB and freeing it waits for the GPU.

        Parameters
        ----------
        shape : int or tuple of int
            The shape. With ``symmetric=True``, all ranks must allocate the same number of bytes.
        dtype : numpy.dtype or str
            The element type.
        symmetric : bool, default False
            Whether all ranks of the group register the array as a window, so that the kernels of NCCL access the memory
            of all ranks directly. Collective, and NCCL only. Calls of this group are faster if both of their arrays are
            in windows, and at the same position in them on every rank. A deleted array is freed at the next call that
            waits for the GPU, such as `empty`, `to_host` or `close`. Delete graphs that use it before. NCCL before 2.30
            keeps the memory of windows that are open while a communicator is aborted, until the process ends.

        Returns
        -------
        numpy.ndarray or cupy.ndarray
            The array.

        Raises
        ------
        CommunicatorError
            If a rank does not have enough memory.
            With ``symmetric=True``, if the sizes of the ranks differ, or if the library or the GPUs of the group have
            no symmetric memory. See the fact ``"symmetric memory"`` of `capabilities`.

        Examples
        --------
        >>> import meshlab as ml
        >>> def double(comm):
        ...     x = comm.empty(4, "float32")
        ...     x[:] = comm.rank + 1
        ...     return float(comm.all_reduce(x)[0])
        >>> with ml.launch(2, backend="threads") as engines:
        ...     engines.run(double)["value"].tolist()
        [3.0, 3.0]
        """
        return empty_symmetric(self, shape, dtype) if symmetric else self.backend.empty(shape, dtype)

    def capabilities(self) -> Capabilities:
        """Return the capabilities of the backend and its library."""
        return with_compositions(self.backend.capabilities())

    # -- streams and events --------------------------------------------------------------------------------------------

    @property
    def stream(self) -> Any:
        """The communication stream, on which `PreparedCall.enqueue` runs.

        On GPUs a ``cupy.cuda.Stream`` that all communicators of a rank share, unless they are separate. Other calls run
        in the current stream of the caller, and are ordered with all calls of the rank. So only `PreparedCall.enqueue`
        and captured graphs need events. If calls block, a `HostStream`, which is always done.
        """
        return getattr(self.backend, "stream", HOST_STREAM)

    @property
    def current_stream(self) -> Any:
        """The current stream of the caller: that of CuPy on GPUs, or a `HostStream` if calls block."""
        return getattr(self.backend, "current_stream", HOST_STREAM)

    def sync(self) -> None:
        """Wait until all calls that this rank has issued so far are done. If calls block, they are done already.

        Raises
        ------
        CommunicatorError
            If the communicator is closed or was aborted.
            If another rank failed or stopped responding.

        Examples
        --------
        >>> import meshlab as ml
        >>> def total(comm):
        ...     x = comm.xp.ones(3)
        ...     comm.prepare("all_reduce", x, x).enqueue()
        ...     comm.sync()
        ...     return x.tolist()
        >>> with ml.launch(2, backend="threads") as engines:
        ...     engines.run(total)["value"].tolist()
        [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]
        """
        self._check_open()
        sync = getattr(self.backend, "sync", None)
        if sync is not None:
            sync()

    def record(self, stream: Any = None) -> Event:
        """Return an event that is done when the work that a stream has been given so far is done.

        Parameters
        ----------
        stream : cupy.cuda.Stream, optional
            The stream. By default the communication stream, which waits for all calls that this rank has issued.

        Returns
        -------
        Event
            The event. If calls block, it is done.

        Raises
        ------
        CommunicatorError
            If the communicator is closed, or `stream` is not a stream of the backend.

        Examples
        --------
        A call that runs while the GPU computes something else. The same code runs on all backends:

        >>> import meshlab as ml
        >>> def overlapped(comm):
        ...     x, y = comm.xp.ones(3), comm.xp.ones(3)
        ...     call = comm.prepare("all_reduce", x, x)
        ...     comm.wait(comm.record(comm.current_stream))  # x is complete
        ...     call.enqueue()
        ...     done = comm.record()
        ...     y *= 3
        ...     comm.wait(done, comm.current_stream)  # later array operations use the result
        ...     return (x + y).tolist()
        >>> with ml.launch(2, backend="threads") as engines:
        ...     engines.run(overlapped)["value"][0]
        [5.0, 5.0, 5.0]
        """
        self._check_open()
        record = getattr(self.backend, "record", None)
        if record is not None:
            event: Event = record(stream)
            return event
        self._check_host_stream(stream)
        return Event()

    def wait(self, event: Event, stream: Any = None) -> None:
        """Make a stream wait for an event. The host does not wait: for that, use `Event.wait`.

        Parameters
        ----------
        event : Event or cupy.cuda.Event
            The event.
        stream : cupy.cuda.Stream, optional
            The stream. By default all later calls of this rank wait, in every stream.

        Raises
        ------
        CommunicatorError
            If the communicator is closed, or an argument is not an event or a stream of the backend.
        """
        self._check_open()
        wait = getattr(self.backend, "wait_for", None)
        if wait is not None:
            wait(event, stream)
            return
        self._check_host_stream(stream)
        if not isinstance(event, Event) or event.native is not None:
            raise CommunicatorError(
                f"event must be the result of record() of this communicator, not {event!r}", group=self.name
            )

    def _check_host_stream(self, stream: Any) -> None:
        if stream is not None and not isinstance(stream, HostStream):
            raise CommunicatorError(
                f"stream must be comm.stream, not {stream!r}: calls of {self.capabilities().backend} run on the CPU",
                hint="omit stream=",
                group=self.name,
            )

    # -- calls ---------------------------------------------------------------------------------------------------------

    def batch(self) -> Batch:
        """Start a batch of calls that are issued together.

        Returns
        -------
        Batch
            A context manager that issues its calls at the end of the block.

        Examples
        --------
        >>> import meshlab as ml
        >>> def ring(comm):
        ...     with comm.batch() as batch:
        ...         batch.send(np.array([comm.rank]), dest=(comm.rank + 1) % comm.size)
        ...         got = batch.recv(np.empty(1, int), source=(comm.rank - 1) % comm.size)
        ...     return got.item()
        >>> with ml.launch(3, backend="threads") as engines:
        ...     engines.run(ring)["value"].tolist()
        [2, 0, 1]
        """
        self._check_open()
        return Batch(self)

    @_OPTIONS.shown
    def prepare(
        self, collective: str, send: Any = None, out: Any = None, **options: Unpack[PreparedOptions]
    ) -> PreparedCall:
        """Check a call once, so that it can run repeatedly.

        Parameters
        ----------
        collective : str
            The name, such as ``"all_reduce"``.
        send, out : array, optional
            The input and the output. Required if the collective has an input or an output on this rank.
        op : str or ReduceOp, optional
            The reduce operation. By default ``"sum"`` for reductions.
        root : int, optional
            The root. By default 0 for collectives with a root.
        dest, source : int, optional
            The receiving and the sending rank of the group, for messages.
        send_counts, recv_counts : sequence of int, optional
            The numbers of elements sent to and received from each rank, for ``all_to_all_v``.
        tag : int, default 0
            The tag, for messages. NCCL has only tag 0.
        dtype : str, optional
            The element type. By default that of the arrays.

        Returns
        -------
        PreparedCall
            The call.

        Raises
        ------
        CommunicatorError
            If an argument is invalid, or the backend does not support the call.

        Examples
        --------
        >>> import meshlab as ml
        >>> def count(comm):
        ...     total = comm.xp.ones(1)
        ...     add_up = comm.prepare("all_reduce", total, total)
        ...     for _ in range(3):
        ...         add_up()
        ...     return total.item()
        >>> with ml.launch(2, backend="threads") as engines:
        ...     engines.run(count)["value"].tolist()
        [8.0, 8.0]
        """
        _OPTIONS.check("prepare", options)
        self._check_open()
        call = self._validator.check(CallArguments(find_collective(collective), send, out, **options))
        self._check_self_messages(call)
        return PreparedCall(self, (call,), prepare_call(self.backend, call))

    def configured(
        self,
        *,
        algorithm: str | None = None,
        protocol: str | None = None,
        min_ctas: int | None = None,
        max_ctas: int | None = None,
        cta_policy: str | None = None,
    ) -> Communicator:
        """Return a view of this communicator with a fixed configuration of its calls. Requires NCCL 2.31 or newer.

        All ranks must pass the same arguments. NCCL rejects a call that cannot use the algorithm and the protocol.
        Messages have no configuration, and are issued as without it.

        Parameters
        ----------
        algorithm, protocol, min_ctas, max_ctas, cta_policy
            The fields of `CallConfig`. By default NCCL chooses.

        Returns
        -------
        Communicator
            The view. Closing it leaves this communicator open, and closing this communicator also closes the view.

        Raises
        ------
        CommunicatorError
            If an argument is invalid.
            If the backend is not NCCL, or the loaded NCCL is too old.

        Examples
        --------
        >>> from meshlab.comm.backends._threads import ThreadWorld
        >>> Communicator(ThreadWorld(1).backend(0)).configured(algorithm="tree", protocol="ll")
        Traceback (most recent call last):
        ...
        meshlab.errors.CommunicatorError: threads cannot configure calls; only nccl supports this
        """
        config = CallConfig(algorithm, protocol, min_ctas, max_ctas, cta_policy)
        check_config(config)
        return self._view(self._optional("configured", "configure calls")(config))

    def _view(self, backend: Backend) -> Communicator:
        """Return a communicator on another endpoint of the same communicator of the library."""
        view = Communicator(backend, **self._settings)
        view._view_of(self)
        return view

    @property
    def _settings(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ranks": self.ranks,
            "on_enter": self._on_enter,
            "monitor": self._monitor,
            "checks": self._checks,
            "comparer": self._comparer,
        }

    def _view_of(self, owner: Communicator) -> None:
        self._owner = owner
        self._agreement = owner._agreement  # the calls of both run on one communicator of the library
        self._validator = owner._validator  # querying the capabilities again takes longer than most calls

    def chosen_by_size(self, choices: Sequence[CallChoice]) -> Communicator:
        """Return a view of this communicator that configures each call by its collective and its message size.

        All ranks must pass the same choices. Messages, ``all_to_all_v`` and the calls of a `batch` are issued without a
        configuration.

        Parameters
        ----------
        choices : sequence of CallChoice
            The choices. A call takes the one of its collective with the smallest ``max_bytes`` that is not below its
            size, or else NCCL's own choice. If one of them has symmetric buffers, `empty` of the view allocates
            symmetric memory, and calls with another choice do not use symmetric kernels.

        Returns
        -------
        Communicator
            The view, which is closed as that of `configured`.

        Raises
        ------
        CommunicatorError
            If a choice is invalid, or two of them are for the same collective and size.
            If a choice has a configuration, and the backend is not NCCL or the loaded NCCL is too old.

        Examples
        --------
        Small calls of this view would use at most four thread blocks on GPUs:

        >>> from meshlab.comm import CallChoice, CallConfig
        >>> from meshlab.comm.backends._threads import ThreadWorld
        >>> small = CallChoice("all_reduce", 64 << 10, CallConfig(max_ctas=4))
        >>> Communicator(ThreadWorld(1).backend(0)).chosen_by_size([small])
        Traceback (most recent call last):
        ...
        meshlab.errors.CommunicatorError: threads cannot configure calls; only nccl supports this
        """
        return _ChosenBySize(self, SizeChoices(choices))

    def registered(self, array: Any, *, symmetric: bool = False) -> AbstractContextManager[None]:
        """Register a buffer for zero-copy transfers within a ``with`` block (NCCL only).

        Parameters
        ----------
        array : cupy.ndarray
            The buffer.
        symmetric : bool, default False
            Whether all ranks of the group register their arrays together as a window, as `empty` does. Collective. The
            array must be in memory of NCCL (`empty`), and have the same size on all ranks. Delete graphs that use it
            before the end of the block.

        Raises
        ------
        CommunicatorError
            If the backend is not NCCL.
            With ``symmetric=True``, if the arrays of the ranks have different sizes, if one of them is not in memory of
            NCCL, or if the library or the GPUs of the group have no symmetric memory.

        Examples
        --------
        >>> from meshlab.comm.backends._threads import ThreadWorld
        >>> comm = Communicator(ThreadWorld(1).backend(0))
        >>> with comm.registered(comm.empty(4, "float32"), symmetric=True):
        ...     pass
        Traceback (most recent call last):
        ...
        meshlab.errors.CommunicatorError: threads cannot register symmetric memory: only NCCL has it, on GPUs;
        omit symmetric=True
        """
        if symmetric:
            return registered_symmetric(self, array)
        register: Callable[[Any], AbstractContextManager[None]] = self._optional("registered", "register buffers")
        return register(array)

    def memory_bytes(self) -> int | None:
        """Return the GPU memory that the communicator uses, in bytes, or None if it is unknown."""
        query = getattr(self.backend, "memory_bytes", None)
        return None if query is None else query()

    def _optional(self, name: str, action: str) -> Any:
        method = getattr(self.backend, name, None)
        if method is None:
            raise CommunicatorError(
                f"{self.capabilities().backend} cannot {action}; only nccl supports this", group=self.name
            )
        return method

    def _call(self, collective: Collective, send: Any = None, out: Any = None, *options: Any) -> Any:
        if self._is_closed or self._owner is not None:
            self._check_open()
        key, repeat = self._cache.find(collective, send, out, options)
        if repeat is not None:
            return repeat(send, out, self._on_enter)
        arguments = CallArguments(collective, send, out, *options)
        if collective.counted and arguments.recv_counts is None:
            counts = self._validator.check_send_counts(arguments)
            arguments = arguments._replace(recv_counts=self._share("all_to_all", counts))
        call = self._validator.check(arguments, makes_output=True)
        self._check_self_messages(call)
        prepared = PreparedCall(self, (call,), prepare_call(self.backend, call))
        prepared()
        if key is not None and call.scalar is None:
            self._remember(key, call, prepared, out is None)
        return call.recv

    def _remember(self, key: tuple[Any, ...], call: Call, prepared: PreparedCall, makes_output: bool) -> None:
        monitor, agreement, recv = self._monitor, self._agreement, call.recv
        enter = compare = new_output = None
        if monitor is not None:
            enter = monitor.enter if prepared._is_collective else monitor.enter_message
        if agreement is not None and agreement.compares_repeated and prepared._is_collective:
            compare = partial(agreement.compare, (call._replace(send=None, recv=None),), agreement.compares_all)
        if makes_output and recv is not None:
            new_output = partial(self.xp.empty, recv.shape, recv.dtype)
        codes = prepared._code, prepared._checksum
        self._cache.add(
            key, checked_call(call, call_runner(self.backend, call), new_output, codes, enter, prepared._leave, compare)
        )

    def _share(self, collective: str, numbers: Sequence[int], *, op: str | None = None) -> list[int]:
        """Run a small collective on integers in host memory."""
        with self.backend.local():
            send = self.xp.asarray(numbers, dtype=np.int64)
            # Not on a view, whose configuration may be impossible for this collective.
            output = self._root._call(CATALOG[collective], send, None, None, op)
            return [int(number) for number in self.to_host(output)]

    def _exchange(self, number: int) -> list[int]:
        """Return the numbers of all ranks, without recording a call. Within a call that is recorded already."""
        return self._unrecorded._share("all_gather", [number])

    @cached_property
    def _unrecorded(self) -> Communicator:
        return Communicator(self.backend, name=self.name, ranks=self.ranks, checks="off")

    def _prepare_batch(self, calls: Sequence[Call]) -> PreparedCall:
        self._check_open()
        if not calls:
            raise CommunicatorError(f"the batch on {self.name} is empty; add calls to it", group=self.name)
        self._validator.check_batch(calls)
        return PreparedCall(self, calls, prepare_batch(self.backend, calls))

    def _check_self_messages(self, call: Call) -> None:
        # A message from a rank to itself needs its counterpart in the same batch. Without it, the call would block
        # forever.
        if call.dest == self.rank or call.source == self.rank:
            self._validator.check_batch((call,))

    @property
    def _root(self) -> Communicator:
        """The communicator of the library: this one, or the one of which it is a view."""
        root = self
        while root._owner is not None:
            root = root._owner
        return root

    @cached_property
    def _validator(self) -> CallValidator:
        # Created on first use, because querying the capabilities of a backend is slow.
        return CallValidator(self.backend, self.name, self.world_rank)

    def _check_open(self) -> None:
        if self._is_closed:
            raise CommunicatorError(f"the communicator of {self.name} is closed; create a new one", group=self.name)
        if self._owner is not None:
            self._owner._check_open()

    def _enter(self, code: int, checksum: int) -> None:
        if self._monitor is not None:
            self._monitor.enter(code, checksum)
        if self._on_enter is not None:
            self._on_enter()

    # -- lifetime ------------------------------------------------------------------------------------------------------

    def split(self, color: int | None, key: int | None = None, *, name: str = "") -> Communicator | None:
        """Create one communicator per color. All ranks must call it.

        Parameters
        ----------
        color : int or None
            Ranks with the same color form a group. Ranks with None are in no group.
        key : int, optional
            Sort key of this rank in the new group. By default its rank in this group.
        name : str, optional
            Name of the new group. By default the name of this group and the color.

        Returns
        -------
        Communicator or None
            The communicator of the new group. None for a rank without a color.

        Raises
        ------
        CommunicatorError
            If `color` or `key` is not an integer, or `color` is negative.

        Examples
        --------
        >>> import meshlab as ml
        >>> def halves(comm):
        ...     with comm.split(comm.rank // 2) as half:
        ...         return half.name, half.ranks
        >>> with ml.launch(4, backend="threads") as engines:
        ...     engines.run(halves)["value"].tolist()
        [('world/0', (0, 1)), ('world/0', (0, 1)), ('world/1', (2, 3)), ('world/1', (2, 3))]
        """
        self._check_split(color, key)
        code = 0 if self._monitor is None else self._monitor.code("split")
        self._enter(code, checksum(()))
        try:
            if self._agreement is not None:
                self._agreement.check((), checksum(()))
            backend = self.backend.split(None if color is None else int(color), self.rank if key is None else int(key))
        finally:
            if self._monitor is not None:
                self._monitor.leave(code)
        if backend is None:
            return None
        name = name or f"{self.name}/{color}"
        monitor = None if self._monitor is None or color is None else self._monitor.child(name, int(color))
        hooks: dict[str, Any] = {"on_enter": self._on_enter, "monitor": monitor}
        ranks = Communicator(backend, name=name, checks="off", **hooks)._share("all_gather", [self.world_rank])
        comparer = None if monitor is None or self._checks == "off" else monitor.comparer(ranks)
        part = Communicator(backend, name=name, ranks=ranks, checks=self._checks, comparer=comparer, **hooks)
        part._torch = self._root._torch
        return part

    def _check_split(self, color: int | None, key: int | None) -> None:
        for what, number in (("color", color), ("key", key)):
            if number is not None and (not isinstance(number, (int, np.integer)) or (what == "color" and number < 0)):
                kind = "a non-negative integer or None" if what == "color" else "an integer"
                raise CommunicatorError(f"split of {self.name}: {what} must be {kind}, not {number!r}")
        self._check_open()

    def close(self) -> None:
        """Free the communicator. All ranks must call it. A second call has no effect."""
        if not self._is_closed:
            self._is_closed = True
            self.backend.close()

    def abort(self) -> None:
        """Abort the communicator without waiting for unresponsive peers, or else mark it as closed.

        On GPUs this aborts every communicator of the rank, because they share one NCCL abort flag.
        """
        if not self._is_closed:
            self._is_closed = True
            abort = getattr(self.backend, "abort", None)
            if abort is not None:
                abort()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        return f"Communicator({self.name!r}, rank {self.rank} of {self.size}{state})"


class _ChosenBySize(Communicator):
    """A view that delegates each call to the view with its configuration."""

    def __init__(self, owner: Communicator, choices: SizeChoices) -> None:
        super().__init__(owner.backend, **owner._settings)
        self._view_of(owner)
        self._plain = owner
        self._choices = choices
        self._views = {
            config: owner if config == CallConfig() else owner.configured(**asdict(config))
            for config in choices.configs
        }

    def empty(self, shape: int | tuple[int, ...], dtype: Any, *, symmetric: bool = False) -> Any:
        return self._plain.empty(shape, dtype, symmetric=symmetric or self._choices.has_windows)

    def prepare(self, collective: str, send: Any = None, out: Any = None, **arguments: Any) -> PreparedCall:
        return self._at(find_collective(collective), send, out).prepare(collective, send, out, **arguments)

    def _call(self, collective: Collective, send: Any = None, out: Any = None, *options: Any) -> Any:
        if self._is_closed:
            self._check_open()
        return self._at(collective, send, out)._call(collective, send, out, *options)

    def _at(self, collective: Collective, send: Any, out: Any) -> Communicator:
        config = self._choices.find(collective, send, out, self.size)
        return self._plain if config is None else self._views[config]
