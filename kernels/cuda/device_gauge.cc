#include "kernels/cuda/device_gauge.h"

#include <time.h>

#include <cstring>
#include <new>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/observe.h"
#include "kernels/host/clocks.h"
#include "kernels/host/error.h"
#include "proto/lossgauge/ring/ring_reader.h"

namespace lossgauge::cuda {
namespace {

constexpr char kWhere[] = "gauge on the device";

// One number for each thread that has asked, never again another's.
std::uint64_t* NumberOfThisThread() {
  static std::atomic<std::uint64_t> threads{0};
  static thread_local std::uint64_t number = threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return &number;
}
// Handle plus one, which is odd or at most 2; of cudaStreamPerThread, one handle for a stream of every thread, an address of the calling thread's, which is even.
std::uintptr_t KeyOf(cudaStream_t stream) {
  if (stream == cudaStreamPerThread) return reinterpret_cast<std::uintptr_t>(NumberOfThisThread());
  return reinterpret_cast<std::uintptr_t>(stream) + 1;
}
bool IsAThreadsOwn(std::uintptr_t key) { return key > 2 && key % 2 == 0; }
// Not of a thread's own, which no other thread can name.
cudaStream_t StreamOf(std::uintptr_t key) { return reinterpret_cast<cudaStream_t>(key - 1); }

HandedScalar Hand(const HandedOver& from) {
  return {from.pointer, from.value, from.dtype == LG_FP64, from.given};
}

}  // namespace

cudaError_t CaptureId(cudaStream_t stream, unsigned long long* id) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  *id = 0;
  const cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, id, nullptr, nullptr, nullptr, nullptr);
  if (status != cudaStreamCaptureStatusActive) *id = 0;
  return error;
}

int CudaGauge::Create(Gauge* gauge, Device* device, std::unique_ptr<CudaGauge>* made) {
  std::unique_ptr<CudaGauge> created(new (std::nothrow) CudaGauge(device, gauge->block_count()));
  if (created == nullptr) return SetError(LG_RESOURCE_EXHAUSTED, "gauge on the device: no memory");
  const ScopedDevice current(device->facts().ordinal);
  if (const int code = created->SetUp(gauge); code != LG_OK) return code;
  *made = std::move(created);
  return LG_OK;
}

int CudaGauge::SetUp(Gauge* gauge) {
  SetUpStream stream;
  const std::size_t counter_bytes = sizeof(DeviceCounters) * static_cast<std::size_t>(block_count_);
  cudaError_t error = stream.error();
  if (error == cudaSuccess) error = cudaMalloc(reinterpret_cast<void**>(&counters_), counter_bytes);
  if (error == cudaSuccess) error = cudaMemsetAsync(counters_, 0, counter_bytes, stream);
  if (error == cudaSuccess) error = cudaMalloc(reinterpret_cast<void**>(&state_), sizeof(PublisherState));
  if (error != cudaSuccess) return SetCudaError(error, kWhere, "counters");

  PublisherState state{};
  state.step = gauge->step();
  state.publications = gauge->segment()->steps().published();
  state.slot = state.publications % LG_STEP_SLOT_COUNT;
  for (int block = 0; block < block_count_; ++block) state.totals[block] = gauge->totals(block);
  error = cudaMemcpyAsync(state_, &state, sizeof state, cudaMemcpyHostToDevice, stream);
  if (error != cudaSuccess) return SetCudaError(error, kWhere, "state");

  if (gauge->token_bytes() != nullptr) {
    const auto bytes = static_cast<std::size_t>(gauge->vocab_size());
    error = cudaMalloc(reinterpret_cast<void**>(&token_bytes_), bytes);
    if (error == cudaSuccess) error = cudaMemcpyAsync(token_bytes_, gauge->token_bytes(), bytes, cudaMemcpyHostToDevice, stream);
    if (error != cudaSuccess) return SetCudaError(error, kWhere, "table of token bytes");
  }

  Segment* segment = gauge->segment();
  error = cudaHostRegister(segment->steps_memory(), segment->steps_bytes(), cudaHostRegisterMapped | cudaHostRegisterPortable);
  if (error != cudaSuccess) return SetCudaError(error, kWhere, "mapping the ring for the device");
  registered_ = segment->steps_memory();
  void* mapped = nullptr;
  error = cudaHostGetDevicePointer(&mapped, registered_, 0);
  if (error == cudaSuccess) error = cudaEventCreateWithFlags(&published_, cudaEventDisableTiming);
  if (error != cudaSuccess) return SetCudaError(error, kWhere, "mapping the ring for the device");

  auto* const ring = static_cast<unsigned char*>(mapped);
  const auto* header = static_cast<const lg_ring_header*>(registered_);
  launch_.counters = counters_;
  launch_.state = state_;
  launch_.slots = ring + header->identity.header_bytes;
  launch_.cursor = reinterpret_cast<unsigned long long*>(ring + offsetof(lg_ring_header, cursor));
  launch_.published_step = reinterpret_cast<long long*>(ring + offsetof(lg_ring_header, status) + offsetof(lg_ring_status, published_step));
  const std::uint64_t words = header->identity.record_words;
  launch_.segment_share = lg_ring_checksum_share(header->identity.segment_id[0], words) + lg_ring_checksum_share(header->identity.segment_id[1], words + 1);
  launch_.slot_count = header->identity.slot_count;
  launch_.block_count = block_count_;
  // The device's global timer keeps the wall clock's epoch; a record needs both clocks.
  launch_.boot_minus_global_ns = BootNs() - WallNs();
  error = stream.Finish();
  return error == cudaSuccess ? LG_OK : SetCudaError(error, kWhere, "set-up");
}

CudaGauge::~CudaGauge() {
  const ScopedDevice current(device_->facts().ordinal);
  const SetUpStream stream;
  // A graph that is replayed later adds to counters that nobody reads and publishes nothing: what it knows stays, until the process ends.
  const bool captured = captured_.load(std::memory_order_relaxed);
  // A publish that is still under way writes to the ring, which must not be unmapped beneath it, and counts on in the state, which must not be marked before.
  (void)cudaDeviceSynchronize();
  if (captured) {
    (void)cudaMemcpyAsync(&state_->publications, &PublisherState::kClosed, sizeof state_->publications, cudaMemcpyHostToDevice, stream);
    (void)cudaStreamSynchronize(stream);  // the copy of a word may return before it is there
  }
  if (registered_ != nullptr) {
    // The device leaves the cursor one behind.
    auto* const header = static_cast<lg_ring_header*>(registered_);
    ring::StoreRelease(&header->cursor, ring::ReadProgress(header, header->identity).whole);
    (void)cudaHostUnregister(registered_);
  }
  for (StreamSlot& slot : slots_) {
    if (const cudaEvent_t event = slot.event.load(std::memory_order_acquire)) (void)cudaEventDestroy(event);
  }
  if (published_ != nullptr) (void)cudaEventDestroy(published_);
  if (!captured) {
    (void)cudaFree(counters_);
    (void)cudaFree(state_);
    (void)cudaFree(token_bytes_);
  }
  (void)cudaGetLastError();
}

CudaGauge::StreamSlot* CudaGauge::Find(cudaStream_t stream) {
  const std::uintptr_t key = KeyOf(stream);
  for (StreamSlot& slot : slots_) {
    std::uintptr_t found = slot.key.load(std::memory_order_acquire);
    if (found == key) return &slot;
    if (found != 0) continue;
    if (slot.key.compare_exchange_strong(found, key, std::memory_order_acq_rel) || found == key) return &slot;
  }
  return nullptr;
}

cudaError_t CudaGauge::EventOf(StreamSlot* slot, cudaEvent_t* event) {
  *event = slot->event.load(std::memory_order_acquire);
  if (*event != nullptr) return cudaSuccess;
  cudaEvent_t made = nullptr;
  if (const cudaError_t error = cudaEventCreateWithFlags(&made, cudaEventDisableTiming); error != cudaSuccess) return error;
  if (slot->event.compare_exchange_strong(*event, made, std::memory_order_acq_rel)) *event = made;
  else (void)cudaEventDestroy(made);
  return cudaSuccess;
}

cudaError_t CudaGauge::TakeOver(StreamSlot* slot, unsigned long long capture_id) {
  const std::uint64_t now = *NumberOfThisThread();
  const std::uint64_t before = slot->thread.exchange(now, std::memory_order_relaxed);
  if (before == 0 || before == now) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  if (slot->used.load(std::memory_order_acquire) && slot->recorded.load(std::memory_order_acquire) && slot->capture_id.load(std::memory_order_relaxed) == capture_id)
    error = cudaStreamWaitEvent(cudaStreamPerThread, slot->event.load(std::memory_order_acquire), 0);
  return error == cudaSuccess ? WaitForPublish(cudaStreamPerThread, capture_id) : error;
}

cudaError_t CudaGauge::WaitForPublish(cudaStream_t stream, unsigned long long capture_id) {
  // An event of another capture, or of none, cannot be waited for inside a capture; there the order is the graph's.
  const bool same_capture = publish_capture_id_.load(std::memory_order_relaxed) == capture_id;
  if (publishes_.load(std::memory_order_acquire) == 0 || !same_capture) return cudaSuccess;
  return cudaStreamWaitEvent(stream, published_, 0);
}

DeviceCounters* CudaGauge::BeginLaunch(int block, cudaStream_t stream, unsigned long long capture_id) {
  StreamSlot* slot = Find(stream);
  if (slot == nullptr) return nullptr;
  const std::uint64_t publishes = publishes_.load(std::memory_order_acquire);
  cudaError_t error = stream == cudaStreamPerThread ? TakeOver(slot, capture_id) : cudaSuccess;
  if (error == cudaSuccess && publishes != slot->seen_publish.load(std::memory_order_relaxed) && publish_stream_.load(std::memory_order_relaxed) != KeyOf(stream))
    error = WaitForPublish(stream, capture_id);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  if (capture_id != 0) captured_.store(true, std::memory_order_relaxed);
  slot->seen_publish.store(publishes, std::memory_order_relaxed);
  slot->capture_id.store(capture_id, std::memory_order_relaxed);
  slot->recorded.store(false, std::memory_order_relaxed);
  slot->used.store(true, std::memory_order_release);
  return counters_ + block;
}

void CudaGauge::EndLaunch(cudaStream_t stream, unsigned long long) {
  // The publishing stream orders itself. Other streams leave an event now: at publish time they may be gone, or a thread's own, which only that thread can ask.
  if (publish_stream_.load(std::memory_order_relaxed) == KeyOf(stream) && stream != cudaStreamPerThread) return;
  StreamSlot* slot = Find(stream);
  if (slot == nullptr) return;
  cudaEvent_t event = nullptr;
  if (EventOf(slot, &event) != cudaSuccess) return;
  slot->recorded.store(cudaEventRecord(event, stream) == cudaSuccess, std::memory_order_release);
}

int CudaGauge::Observe(std::int32_t block, const Observed& observed, void* given_stream) {
  const auto stream = static_cast<cudaStream_t>(given_stream);
  const ScopedDevice current(ordinal());
  unsigned long long capture_id = 0;
  if (const cudaError_t error = CaptureId(stream, &capture_id); error != cudaSuccess) return SetCudaError(error, kWhere, "stream");
  DeviceCounters* counters = BeginLaunch(block, stream, capture_id);
  if (counters == nullptr) return SetError(LG_RESOURCE_EXHAUSTED, "gauge on the device: stream: more than %zu streams have added to this gauge", kMostStreams);
  if (const cudaError_t error = LaunchObserve(observed, counters, stream); error != cudaSuccess) return SetCudaError(error, kWhere, "observe");
  EndLaunch(stream, capture_id);
  return LG_OK;
}

int CudaGauge::Publish(const StepEnd& end, void* given_stream) {
  const auto stream = static_cast<cudaStream_t>(given_stream);
  const ScopedDevice current(device_->facts().ordinal);
  unsigned long long capture_id = 0;
  if (const cudaError_t error = CaptureId(stream, &capture_id); error != cudaSuccess) return SetCudaError(error, kWhere, "stream");
  if (StreamSlot* slot = stream == cudaStreamPerThread ? Find(stream) : nullptr) {
    if (const cudaError_t error = TakeOver(slot, capture_id); error != cudaSuccess) return SetCudaError(error, kWhere, "waiting for another thread's loss calls");
  }
  if (publish_stream_.load(std::memory_order_relaxed) != KeyOf(stream)) {
    if (const cudaError_t error = WaitForPublish(stream, capture_id); error != cudaSuccess) return SetCudaError(error, kWhere, "waiting for another stream's publish");
  }
  for (StreamSlot& slot : slots_) {
    const std::uintptr_t key = slot.key.load(std::memory_order_acquire);
    if (key == 0) break;
    if (slot.capture_id.load(std::memory_order_relaxed) != capture_id) continue;  // a publish that is only captured has not waited for a direct call
    const bool recorded = slot.recorded.load(std::memory_order_acquire);
    if (!recorded && key != KeyOf(stream) && IsAThreadsOwn(key)) continue;  // that thread is in a loss call now: of the next step
    if (!slot.used.exchange(false, std::memory_order_acq_rel) || key == KeyOf(stream)) continue;
    cudaEvent_t event = nullptr;
    cudaError_t error = EventOf(&slot, &event);
    if (error == cudaSuccess && !recorded) error = cudaEventRecord(event, StreamOf(key));
    if (error == cudaSuccess) error = cudaStreamWaitEvent(stream, event, 0);
    if (error != cudaSuccess) return SetCudaError(error, kWhere, "waiting for another stream's loss calls");
  }
  if (capture_id != 0) captured_.store(true, std::memory_order_relaxed);
  PublishLaunch launch = launch_;
  launch.phase = end.phase;
  launch.set_step = end.set_step;
  launch.grad_norm = Hand(end.grad_norm);
  launch.learning_rate = Hand(end.learning_rate);
  launch.denominator = Hand(end.denominator);
  launch.reported_given = end.reported_given;
  launch.reported_value = end.reported.value;
  launch.reported_auxiliary = end.reported.auxiliary;
  launch.reported_dtype = static_cast<unsigned long long>(end.reported.dtype);
  launch.reported_interval = static_cast<unsigned long long>(end.reported.interval);
  cudaError_t error = LaunchPublish(launch, stream);
  if (error == cudaSuccess) error = cudaEventRecord(published_, stream);
  if (error != cudaSuccess) return SetCudaError(error, kWhere, "publish");
  publish_stream_.store(KeyOf(stream), std::memory_order_relaxed);
  publish_capture_id_.store(capture_id, std::memory_order_relaxed);
  publishes_.fetch_add(1, std::memory_order_acq_rel);
  return LG_OK;
}

}  // namespace lossgauge::cuda
