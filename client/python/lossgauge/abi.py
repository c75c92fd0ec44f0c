"""The structures of lossgauge.h for ctypes. Field by field as there; tests/python/abi_test.py compares every offset with the compiler's."""

import ctypes as c

FP32, BF16, FP16, FP64, INT32, INT64 = 0, 1, 2, 3, 16, 17
MEAN, SUM, NONE = 0, 1, 2
GRAD_NORM, LEARNING_RATE, DENOMINATOR = 0, 1, 2
GRADIENT_REDUCTIONS = {"unknown": 0, "sum": 1, "mean": 2}
PHASES = {"train": 0, "warm_up": 1, "evaluation": 2, "checkpoint": 3, "data_loading": 4, "other": 5}


class Axis(c.Structure):
    _fields_ = [("size", c.c_int32), ("index", c.c_int32)]


class GaugeOptions(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("run", c.c_char_p),
        ("attempt", c.c_char_p),
        ("attempt_start_wall_ns", c.c_int64),
        ("rank", c.c_int32),
        ("world_size", c.c_int32),
        ("dp", Axis),
        ("tp", Axis),
        ("pp", Axis),
        ("cp", Axis),
        ("ep", Axis),
        ("has_loss", c.c_int32),
        ("gradient_reduction", c.c_int32),
        ("vocab_size", c.c_int64),
        ("shard_offset", c.c_int64),
        ("shard_columns", c.c_int64),
        ("label_smoothing", c.c_double),
        ("z_loss_weight", c.c_double),
        ("ring_dir", c.c_char_p),
        ("group", c.c_char_p),
        ("token_bytes", c.c_void_p),
        ("block_names", c.POINTER(c.c_char_p)),
        ("block_count", c.c_int32),
        ("first_step", c.c_int64),
    ]


class GaugeState(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("telemetry_on", c.c_int32),
        ("code", c.c_int32),
        ("message", c.c_char * 512),
        ("steps_path", c.c_char * 512),
        ("next_step", c.c_int64),
        ("published", c.c_uint64),
        ("dropped_calls", c.c_uint64),
        ("ring_bytes", c.c_uint64),
    ]


class ReportedLoss(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("value", c.c_double),
        ("dtype", c.c_int32),
        ("interval", c.c_int64),
        ("auxiliary", c.c_double),
    ]


class Observation(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("block", c.c_int32),
        ("nll_sum", c.c_double),
        ("tokens", c.c_int64),
        ("unmasked_tokens", c.c_int64),
        ("nonfinite_rows", c.c_int64),
        ("denominator", c.c_double),
        ("stream", c.c_void_p),
        ("nll_sum_pointer", c.c_void_p),
        ("unmasked_tokens_pointer", c.c_void_p),
        ("denominator_pointer", c.c_void_p),
    ]


class CrossEntropyArgs(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("logits", c.c_void_p),
        ("logits_dtype", c.c_int32),
        ("rows", c.c_int64),
        ("columns", c.c_int64),
        ("row_stride", c.c_int64),
        ("vocab_size", c.c_int64),
        ("targets", c.c_void_p),
        ("target_dtype", c.c_int32),
        ("target_stride", c.c_int64),
        ("ignore_index", c.c_int64),
        ("label_smoothing", c.c_double),
        ("z_loss_weight", c.c_double),
        ("logit_scale", c.c_double),
        ("logit_softcap", c.c_double),
        ("reduction", c.c_int32),
        ("denominator", c.c_double),
        ("denominator_pointer", c.c_void_p),
        ("losses", c.c_void_p),
        ("log_z", c.c_void_p),
        ("loss", c.c_void_p),
        ("grad_logits", c.c_void_p),
        ("grad_row_stride", c.c_int64),
        ("upstream", c.c_void_p),
        ("upstream_stride", c.c_int64),
        ("grad_scale", c.c_void_p),
        ("gauge", c.c_void_p),
        ("block", c.c_int32),
        ("position_base", c.c_int64),
        ("positions", c.c_void_p),
        ("stream", c.c_void_p),
        ("threads", c.c_int32),
    ]


class ScaleGradientArgs(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("grad", c.c_void_p),
        ("dtype", c.c_int32),
        ("rows", c.c_int64),
        ("columns", c.c_int64),
        ("row_stride", c.c_int64),
        ("upstream", c.c_void_p),
        ("upstream_stride", c.c_int64),
        ("stream", c.c_void_p),
        ("threads", c.c_int32),
    ]


class LinearCrossEntropyArgs(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("hidden", c.c_void_p),
        ("dtype", c.c_int32),
        ("logits_dtype", c.c_int32),
        ("rows", c.c_int64),
        ("width", c.c_int64),
        ("hidden_stride", c.c_int64),
        ("weight", c.c_void_p),
        ("columns", c.c_int64),
        ("weight_stride", c.c_int64),
        ("bias", c.c_void_p),
        ("grad_hidden", c.c_void_p),
        ("grad_hidden_stride", c.c_int64),
        ("grad_weight", c.c_void_p),
        ("grad_weight_stride", c.c_int64),
        ("grad_bias", c.c_void_p),
        ("head_grad_dtype", c.c_int32),
        ("accumulate", c.c_int32),
        ("chunk_rows", c.c_int64),
        ("memory_budget", c.c_int64),
        ("workspace", c.c_void_p),
        ("workspace_bytes", c.c_int64),
        ("most_unmasked_rows", c.c_int64),
        ("head_grad_signal", c.c_int32),
        ("reserved", c.c_int64 * 8),
        ("loss", CrossEntropyArgs),
    ]


class LinearPlan(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("chunk_rows", c.c_int64),
        ("chunks", c.c_int64),
        ("workspace_bytes", c.c_int64),
        ("logits_bytes", c.c_int64),
    ]


class VocabParallelArgs(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("group_size", c.c_int32),
        ("group_index", c.c_int32),
        ("vocab_size", c.c_int64),
        ("shard_offset", c.c_int64),
        ("shard_columns", c.c_int64),
        ("step", c.c_int64),
        ("micro_batch", c.c_int64),
        ("gathered_stride", c.c_int64),
        ("reserved", c.c_int64 * 8),
        ("loss", CrossEntropyArgs),
    ]


class PackLabelsArgs(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("tokens", c.c_void_p),
        ("token_dtype", c.c_int32),
        ("count", c.c_int64),
        ("cu_seqlens", c.c_void_p),
        ("length_dtype", c.c_int32),
        ("documents", c.c_int64),
        ("prompt_lengths", c.c_void_p),
        ("pad", c.c_int64),
        ("has_pad", c.c_int32),
        ("ignore_index", c.c_int64),
        ("labels", c.c_void_p),
        ("counts", c.c_void_p),
        ("stream", c.c_void_p),
    ]


EXCHANGE = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_void_p, c.c_int64, c.c_void_p)


class VocabParallelLinearArgs(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("group_size", c.c_int32),
        ("group_index", c.c_int32),
        ("vocab_size", c.c_int64),
        ("shard_offset", c.c_int64),
        ("shard_columns", c.c_int64),
        ("step", c.c_int64),
        ("micro_batch", c.c_int64),
        ("exchange", EXCHANGE),
        ("exchange_context", c.c_void_p),
        ("communicator", c.c_void_p),
        ("reduce_grad_hidden", c.c_int32),
        ("linear", c.POINTER(LinearCrossEntropyArgs)),
    ]


# C name of each structure.
STRUCTURES = {
    "lg_axis_option": Axis,
    "lg_gauge_options": GaugeOptions,
    "lg_gauge_state": GaugeState,
    "lg_reported_loss": ReportedLoss,
    "lg_observation": Observation,
    "lg_cross_entropy_args": CrossEntropyArgs,
    "lg_scale_gradient_args": ScaleGradientArgs,
    "lg_linear_cross_entropy_args": LinearCrossEntropyArgs,
    "lg_linear_plan": LinearPlan,
    "lg_vocab_parallel_args": VocabParallelArgs,
    "lg_vocab_parallel_linear_args": VocabParallelLinearArgs,
    "lg_pack_labels_args": PackLabelsArgs,
}

_P = c.POINTER
# Name -> argument types of every function that is called. All return int but those of library.py.
FUNCTIONS = {
    "lg_gauge_open": [_P(GaugeOptions), _P(c.c_void_p)],
    "lg_gauge_close": [c.c_void_p, c.c_char_p],
    "lg_gauge_abandon": [c.c_void_p, c.c_char_p],
    "lg_gauge_get_state": [c.c_void_p, _P(GaugeState)],
    "lg_gauge_phase_begin": [c.c_void_p, c.c_int32],
    "lg_gauge_phase_end": [c.c_void_p, c.c_int32],
    "lg_gauge_checkpoint_saved": [c.c_void_p, c.c_int64, c.c_char_p],
    "lg_gauge_resume": [c.c_void_p, c.c_int64, c.c_char_p],
    "lg_gauge_evaluation": [c.c_void_p, c.c_int64, c.c_double, c.c_int64],
    "lg_gauge_note": [c.c_void_p, c.c_int64, c.c_char_p],
    "lg_gauge_set_scalar": [c.c_void_p, c.c_int32, c.c_double],
    "lg_gauge_set_scalar_pointer": [c.c_void_p, c.c_int32, c.c_void_p, c.c_int32],
    "lg_gauge_set_reported_loss": [c.c_void_p, _P(ReportedLoss)],
    "lg_gauge_observe": [c.c_void_p, _P(Observation)],
    "lg_gauge_publish": [c.c_void_p, c.c_void_p],
    "lg_gauge_set_step": [c.c_void_p, c.c_int64],
    "lg_cross_entropy": [_P(CrossEntropyArgs)],
    "lg_cross_entropy_backward": [_P(CrossEntropyArgs)],
    "lg_scale_gradient": [_P(ScaleGradientArgs)],
    "lg_observe_logits": [_P(CrossEntropyArgs)],
    "lg_linear_cross_entropy": [_P(LinearCrossEntropyArgs)],
    "lg_linear_cross_entropy_backward": [_P(LinearCrossEntropyArgs)],
    "lg_linear_cross_entropy_plan": [_P(LinearCrossEntropyArgs), _P(LinearPlan)],
    "lg_linear_cross_entropy_prepare": [_P(LinearCrossEntropyArgs)],
    "lg_vocab_parallel_contribution_bytes": [c.c_int64, _P(c.c_int64)],
    "lg_vocab_parallel_begin": [_P(VocabParallelArgs), c.c_void_p],
    "lg_vocab_parallel_finish": [_P(VocabParallelArgs), c.c_void_p],
    "lg_vocab_parallel_linear_cross_entropy": [_P(VocabParallelLinearArgs)],
    "lg_vocab_parallel_linear_plan": [_P(VocabParallelLinearArgs), _P(LinearPlan)],
    "lg_pack_labels": [_P(PackLabelsArgs)],
}
INITIALISERS = {
    "lg_gauge_options_init": GaugeOptions,
    "lg_reported_loss_init": ReportedLoss,
    "lg_observation_init": Observation,
    "lg_cross_entropy_args_init": CrossEntropyArgs,
    "lg_scale_gradient_args_init": ScaleGradientArgs,
    "lg_linear_cross_entropy_args_init": LinearCrossEntropyArgs,
    "lg_vocab_parallel_args_init": VocabParallelArgs,
    "lg_vocab_parallel_linear_args_init": VocabParallelLinearArgs,
    "lg_pack_labels_args_init": PackLabelsArgs,
}
