#include "server/ingest/ring_source.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/lossgauge/ring/boot_id.h"
#include "server/ingest/text_repair.h"
#include "spdlog/spdlog.h"

namespace lossgauge::ingest {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kStatEveryNs = 100 * kMillisecond;
constexpr std::int64_t kListEveryNs = 2000 * kMillisecond;
constexpr std::int64_t kFirstPauseNs = 100 * kMillisecond;
constexpr std::int64_t kLongestPauseNs = 5000 * kMillisecond;
constexpr std::int64_t kEventsGraceNs = 2000 * kMillisecond;  // a step ring without its event ring is attached after so long
constexpr std::string_view kStepsSuffix = ".steps";

std::shared_ptr<const state::ProducerInfo> MakeInfo(const lg_ring_identity& identity, std::string path, std::uint64_t* names_repaired) {
  auto info = std::make_shared<state::ProducerInfo>();
  info->segment.words[0] = identity.segment_id[0];
  info->segment.words[1] = identity.segment_id[1];
  RepairedName run = RepairName(ring::FieldText(identity.run, sizeof identity.run), kMaxRunBytes);
  RepairedName attempt = RepairName(ring::FieldText(identity.attempt, sizeof identity.attempt), kMaxAttemptBytes);
  *names_repaired += run.repaired + attempt.repaired;
  info->run = std::move(run.name);
  info->attempt = std::move(attempt.name);
  info->attempt_start_ns = identity.attempt_start_wall_ns;
  info->layout = identity.layout;
  info->label_smoothing = std::isfinite(identity.label_smoothing) ? identity.label_smoothing : 0;
  info->z_loss_weight = std::isfinite(identity.z_loss_weight) ? identity.z_loss_weight : 0;
  for (std::size_t i = 0; i < info->block_names.size(); ++i) {
    info->block_names[i] = RepairUtf8(ring::FieldText(identity.block_names[i], LG_BLOCK_NAME_BYTES));
  }
  info->ring_path = std::move(path);
  return info;
}

}  // namespace

RingSource::RingSource(RingSourceOptions options, state::Clock* clock) : options_(std::move(options)), clock_(clock) {
  (void)ring::ReadBootId(boot_id_);
  for (const std::string& path : options_.directories) directories_.push_back({path, -1, 0, ""});
}

RingSource::~RingSource() = default;

void RingSource::List(Directory* directory, state::TimeNs now_ns) {
  directory->next_listing_ns = now_ns + kListEveryNs;
  DIR* handle = opendir(directory->path.c_str());
  if (handle == nullptr) {
    const int error = errno;
    if (error == ENOENT) {  // the first job makes it
      MarkVanished(directory->path, {});
      directory->last_error.clear();
      return;
    }
    const std::string message = absl::StrCat("cannot read ring directory ", directory->path, " as uid ", geteuid(), ": ", std::strerror(error));
    if (directory->last_error != message) {
      ++stats_.errors["directory_unreadable"];
      spdlog::error("{}", message);
      directory->last_error = message;
    }
    return;
  }
  directory->last_error.clear();
  std::set<std::string> present;
  bool is_whole = true;
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(handle);
    if (entry == nullptr) {
      is_whole = errno == 0;
      break;
    }
    const std::string_view name(entry->d_name);
    if (name.size() <= kStepsSuffix.size() || !name.ends_with(kStepsSuffix) || name.front() == '.') continue;
    if (present.size() >= options_.max_files) {
      is_whole = false;
      ++stats_.errors["too_many_files"];
      break;
    }
    present.insert(directory->path + "/" + std::string(name.substr(0, name.size() - kStepsSuffix.size())));
  }
  closedir(handle);
  for (const std::string& base : present) {
    if (attached_.contains(base) || candidates_.contains(base)) continue;
    Candidate& candidate = candidates_[base];
    candidate.first_seen_ns = candidate.next_try_ns = now_ns;
  }
  // A file that a partial listing does not show may well be there.
  if (is_whole) MarkVanished(directory->path, present);
}

void RingSource::MarkVanished(const std::string& directory, const std::set<std::string>& present) {
  const auto is_gone = [&](const std::string& base) {
    return base.size() > directory.size() && base[directory.size()] == '/' && base.starts_with(directory) &&
           base.find('/', directory.size() + 1) == std::string::npos && !present.contains(base);
  };
  std::erase_if(candidates_, [&](const auto& entry) {
    if (!is_gone(entry.first)) return false;
    if (entry.second.leave_alone) vanished_candidates_.push_back(entry.second.segment);
    return true;
  });
  for (auto& [base, attached] : attached_) {
    if (is_gone(base)) attached.vanished = true;
  }
}

void RingSource::Refuse(const std::string& base, Candidate* candidate, const std::string& cause, const std::string& message, bool is_error,
                        state::TimeNs now_ns) {
  if (candidate->last_cause != cause) {
    candidate->last_cause = cause;
    candidate->pause_ns = 0;
    ++stats_.errors[cause];
    if (is_error) {
      spdlog::warn("{} [{}]", message, cause);
    } else {
      spdlog::debug("{} [{}] {}", message, cause, base);
    }
  }
  candidate->pause_ns = std::clamp(candidate->pause_ns * 2, kFirstPauseNs, kLongestPauseNs);
  candidate->next_try_ns = now_ns + candidate->pause_ns;
}

std::unique_ptr<Segment> RingSource::Open(const std::string& base, Candidate* candidate, state::TimeNs now_ns) {
  RingFileResult steps = OpenRingFile(base + ".steps", LG_RING_KIND_STEPS);
  if (steps.file == nullptr) {
    Refuse(base, candidate, steps.cause, steps.message, !steps.is_pending, now_ns);
    return nullptr;
  }
  RingFileResult events = OpenRingFile(base + ".events", LG_RING_KIND_EVENTS);
  const auto same_segment = [&] {
    return std::memcmp(steps.file->identity.segment_id, events.file->identity.segment_id, sizeof(state::SegmentId)) == 0;
  };
  if (events.file != nullptr && !same_segment()) {
    events.file = nullptr;
    events.cause = "other_segment";
    events.message = absl::StrCat("ring ", base, ".events belongs to another segment than its step ring");
  }
  if (events.file == nullptr) {
    Refuse(base, candidate, events.cause, events.message, !events.is_pending, now_ns);
    if (now_ns - candidate->first_seen_ns < kEventsGraceNs) return nullptr;
  }
  auto info = MakeInfo(steps.file->identity, base + ".steps", &stats_.names_repaired);
  return std::make_unique<Segment>(base, std::move(steps.file), std::move(events.file), std::move(info));
}

void RingSource::AttachCandidates(state::RecordSink& sink, const state::CursorLookup& cursors, const SegmentTime& time) {
  struct Ready {
    std::string base;
    std::unique_ptr<Segment> segment;
    bool alive;
  };
  std::vector<Ready> ready;
  for (auto& [base, candidate] : candidates_) {
    if (candidate.leave_alone || time.now_ns < candidate.next_try_ns) continue;
    if (attached_.size() + ready.size() >= options_.max_segments) {
      Refuse(base, &candidate, "max_segments", absl::StrCat("ring ", base, ".steps: already ", options_.max_segments, " segments"), true, time.now_ns);
      continue;
    }
    const std::uint64_t repaired_before = stats_.names_repaired;
    std::unique_ptr<Segment> segment = Open(base, &candidate, time.now_ns);
    if (segment == nullptr) continue;
    if (candidate.last_cause == "refused") stats_.names_repaired = repaired_before;  // counted at the first try
    if (cursors.FindCursor(segment->info()->segment).ended) {
      candidate.leave_alone = true;
      candidate.segment = segment->info()->segment;
      continue;
    }
    const bool alive = segment->ProbeLock() != LockState::kFree;
    ready.push_back({base, std::move(segment), alive});
  }
  // The dead first: a rank's new segment succeeds its old one, never the other way round.
  std::stable_sort(ready.begin(), ready.end(), [](const Ready& a, const Ready& b) {
    const auto key = [](const Ready& r) { return std::make_pair(r.alive, r.segment->info()->attempt_start_ns); };
    return key(a) < key(b);
  });
  for (Ready& r : ready) {
    Segment& segment = *r.segment;
    const state::ResumePosition position = cursors.FindCursor(segment.info()->segment);
    if (!sink.OnProducer(segment.info())) {
      Candidate& candidate = candidates_[r.base];
      Refuse(r.base, &candidate, "refused", absl::StrCat("ring ", r.base, ".steps of run \"", segment.info()->run, "\" rank ",
                                                         segment.info()->layout.rank, " is refused: run or rank limit, or a second producer"),
             true, time.now_ns);
      candidate.next_try_ns = time.now_ns + kLongestPauseNs;
      continue;
    }
    segment.Resume(position);
    segment.CheckLiveness(sink, time, options_.liveness);
    spdlog::info("attached {} (run \"{}\", attempt \"{}\", rank {} of {})", segment.info()->ring_path, segment.info()->run,
                 segment.info()->attempt, segment.info()->layout.rank, segment.info()->layout.world_size);
    candidates_.erase(r.base);
    attached_[r.base].segment = std::move(r.segment);
  }
}

// What is over: files gone and everything delivered, or the run is over and the file lingers.
void RingSource::Forget(state::RecordSink& sink, state::TimeNs now_ns) {
  for (const state::SegmentId& segment : std::exchange(vanished_candidates_, {})) sink.OnProducerGone(segment, now_ns);
  for (auto it = attached_.begin(); it != attached_.end();) {
    Attached& attached = it->second;
    if (attached.vanished && attached.segment->finished()) {
      sink.OnProducerGone(attached.segment->info()->segment, now_ns);
      it = attached_.erase(it);
    } else {
      ++it;
    }
  }
}

bool RingSource::Reaches(const state::ProducerInfo& producer) const {
  constexpr std::size_t kSuffixBytes = kStepsSuffix.size();
  if (producer.ring_path.size() > kSuffixBytes &&
      attached_.contains(producer.ring_path.substr(0, producer.ring_path.size() - kSuffixBytes))) {
    return true;
  }
  const std::string directory = producer.ring_path.substr(0, producer.ring_path.rfind('/'));
  return std::none_of(directories_.begin(), directories_.end(),
                      [&](const Directory& d) { return d.path == directory && !d.last_error.empty(); });
}

void RingSource::AttachEvents(const std::string& base, Attached* attached, const state::CursorLookup& cursors, state::TimeNs now_ns) {
  Segment& segment = *attached->segment;
  if (segment.has_events() || segment.finished() || attached->vanished || now_ns < attached->next_events_try_ns) return;
  attached->next_events_try_ns = now_ns + kLongestPauseNs;
  RingFileResult events = OpenRingFile(base + ".events", LG_RING_KIND_EVENTS);
  const state::SegmentId& id = segment.info()->segment;
  if (events.file == nullptr || std::memcmp(events.file->identity.segment_id, &id, sizeof id) != 0) return;  // counted at the attaching
  segment.AttachEvents(std::move(events.file), cursors.FindCursor(id).next_events_publication);
  spdlog::info("attached {}.events, which was not there before", base);
}

std::vector<RingSource::AttachedMap::iterator> RingSource::DrainOrder() {
  std::vector<AttachedMap::iterator> order;
  order.reserve(attached_.size());
  bool has_undelivered = false;
  for (auto it = attached_.begin(); it != attached_.end(); ++it) {
    const Segment& segment = *it->second.segment;
    has_undelivered |= !segment.alive() && !segment.drained();
    order.push_back(it);
  }
  if (!has_undelivered) return order;
  const auto key = [](AttachedMap::iterator it) {
    return std::make_pair(it->second.segment->alive(), it->second.segment->info()->attempt_start_ns);
  };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return key(a) < key(b); });
  return order;
}

state::PollResult RingSource::Poll(state::RecordSink& sink, const state::CursorLookup& cursors, state::TimeNs now_ns) {
  SegmentTime time;
  time.now_ns = now_ns;
  time.boot_ns = clock_->BootNs();
  time.boot_id = boot_id_;
  if (now_ns >= next_stat_ns_) {
    next_stat_ns_ = now_ns + kStatEveryNs;
    stats_.reachable = true;
    for (Directory& directory : directories_) {
      struct stat info = {};
      const bool exists = stat(directory.path.c_str(), &info) == 0;
      const std::int64_t modified = exists ? std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec : 0;
      if (modified != directory.modified_ns || now_ns >= directory.next_listing_ns) {
        directory.modified_ns = modified;
        List(&directory, now_ns);
      }
      if (!directory.last_error.empty()) stats_.reachable = false;
    }
    AttachCandidates(sink, cursors, time);
  }
  state::PollResult result;
  for (auto& [base, attached] : attached_) {
    attached.segment->set_vanished(attached.vanished);
    AttachEvents(base, &attached, cursors, now_ns);
    attached.segment->CheckLiveness(sink, time, options_.liveness);
  }
  std::set<std::tuple<std::string, std::string, std::uint32_t>> undelivered;  // of the dead
  for (const AttachedMap::iterator it : DrainOrder()) {
    Segment& segment = *it->second.segment;
    const state::ProducerInfo& info = *segment.info();
    if (!undelivered.empty() && undelivered.contains({info.run, info.attempt, info.layout.rank})) continue;  // its predecessor's come first
    segment.Drain(sink, time, options_.drain_budget, &result);
    if (!segment.alive() && !segment.drained()) undelivered.insert({info.run, info.attempt, info.layout.rank});
    if (const std::string error = segment.TakeError(); !error.empty()) {
      ++stats_.errors[error];
      spdlog::warn("ring {} is {} and is not read any further", segment.info()->ring_path, error);
    }
    if (segment.alive()) ++result.live_producers;
    if (segment.drained() && !segment.alive() && cursors.FindCursor(segment.info()->segment).ended) {
      // Its run was let go; the file lingers.
      Candidate& candidate = candidates_[it->first];
      candidate.leave_alone = true;
      candidate.segment = info.segment;
      if (it->second.vanished) {
        vanished_candidates_.push_back(info.segment);
        candidates_.erase(it->first);
      }
      attached_.erase(it);
    }
  }
  Forget(sink, now_ns);
  stats_.rings_attached = attached_.size();
  return result;
}

void RingSource::OnCommitted(state::TimeNs now_ns) {
  if (!options_.reclaim) return;
  for (auto& [base, attached] : attached_) {
    if (!attached.segment->finished() || attached.vanished) continue;
    if (now_ns - attached.segment->finished_ns() < options_.reclaim_after_ns) continue;
    for (const char* suffix : {".steps", ".events", ".lock"}) unlink((base + suffix).c_str());
    spdlog::info("reclaimed drained ring {}", attached.segment->info()->ring_path);
  }
}

}  // namespace lossgauge::ingest
