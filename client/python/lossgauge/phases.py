"""Phases in which a job does something else than train."""

from . import abi, library

_APART = (abi.PHASES["evaluation"], abi.PHASES["warm_up"])  # their losses are not the step's


class Phase:
    def __init__(self, gauge, phase):
        self._gauge, self._phase = gauge, phase

    def __enter__(self):
        self._gauge._check_open()
        depth = self._gauge._open_phases
        if depth[self._phase] == 0:
            library.call("gauge_phase_begin", self._gauge._handle, self._phase)
        depth[self._phase] += 1
        self._gauge._apart += self._phase in _APART
        return self

    def __exit__(self, kind, value, traceback):
        depth = self._gauge._open_phases
        depth[self._phase] -= 1
        self._gauge._apart -= self._phase in _APART
        if depth[self._phase] == 0 and not self._gauge.closed:
            library.call("gauge_phase_end", self._gauge._handle, self._phase)
