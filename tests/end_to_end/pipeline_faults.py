"""What each fault of pipeline_8b_with_faults must be called by the sidecar that watches: shared by the test on CPUs and the run on GPUs."""

import re
import typing

from stack import wait_for


class Fault(typing.NamedTuple):
    name: str
    kind: str  # of the incident of condition integrity
    loss_is_nan: bool
    # How many ranks it takes to tell whose fault it is: where sums differ, two cannot say who is odd. 0: no rank is to blame.
    named_among: int
    from_first_step: bool = False

    def begins(self, step):
        """The first faulty step, where faults that can wait begin at `step`."""
        return 0 if self.from_first_step else step


SEEN_BY_SUMS = (
    Fault("missing_rank", "exchange", True, 2),
    Fault("stale_contribution", "exchange", True, 2),
    Fault("bit_flip", "exchange", True, 2),
    Fault("stale_max", "mass", False, 2),
    Fault("sum_twice", "mass", False, 2),
    Fault("other_mask", "agreement", True, 3),
    Fault("other_labels", "agreement", True, 3),
    Fault("gathered_logits", "coverage", False, 0, from_first_step=True),
)
# Every sum stays right, so that only the loss can tell.
SEEN_BY_LOSS = ("swapped_shards", "other_layer")


def losses(output):
    return [float(x) for x in re.findall(r"^step \d+ loss (\S+)", output, re.M)]


def wait_for_end(stack, run):
    wait_for(f"the end of run {run}", lambda: stack.api("run", run=run).get("ended"), 20)


def integrity(stack, run):
    return [i for i in stack.incidents(run) if i["condition"] == "integrity"]


def wrong_by_sums(stack, run, fault, seen, ranks, step, rank):
    """What is wrong, as sentences, about an ended run with a fault of SEEN_BY_SUMS on `rank` from `step` on whose losses were `seen`; none: as it should be."""
    wrong = []
    step = fault.begins(step)
    incidents = [i for i in integrity(stack, run) if i["kind"] == fault.kind]
    if len(incidents) != 1:
        return [f"{len(incidents)} incidents integrity/{fault.kind} instead of one: {stack.incidents(run)}"]
    if int(incidents[0]["onsetStep"]) != step:
        wrong.append(f"onset at step {incidents[0]['onsetStep']} instead of {step}")
    blamed = rank if fault.named_among and ranks >= fault.named_among else None
    if incidents[0].get("rank") != blamed:
        wrong.append(f"blames rank {incidents[0].get('rank')} instead of {blamed}")
    if any(x != x for x in seen[:step]):
        wrong.append("a loss before the fault is NaN")
    if {x != x for x in seen[step:]} != {fault.loss_is_nan}:
        wrong.append(f"losses from the fault on: {seen[step:]}; NaN expected: {fault.loss_is_nan}")
    actions = [v["action"] for v in stack.api("verdicts", run=run)["verdicts"]]
    if "HALT" not in actions:
        wrong.append(f"never HALT: {actions}")
    return wrong


def wrong_by_loss(stack, run, seen, step):
    """Likewise for one of SEEN_BY_LOSS. Against a baseline of healthy steps a judge may call it a shard's fault."""
    wrong = [f"{i['condition']}/{i['kind']}" for i in integrity(stack, run) if i["kind"] != "shard"]
    if not min(seen[step:]) > max(seen[:step]) + 0.5:
        wrong.append(f"losses {seen}")
    return wrong
