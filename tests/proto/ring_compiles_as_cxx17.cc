// The writer and the reader as C++17, which CUDA hosts and other people's projects may be built with.
#include "proto/lossgauge/ring/fixed128.h"
#include "proto/lossgauge/ring/ring_reader.h"
#include "proto/lossgauge/ring/ring_writer.h"

static_assert(__cplusplus < 202002L);
template class lossgauge::ring::RingWriter<>;
template class lossgauge::ring::RingReader<lg_step_record>;
template class lossgauge::ring::RingReader<lg_event_record>;
