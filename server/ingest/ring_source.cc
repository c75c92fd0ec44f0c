#include "server/ingest/ring_source.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
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
constexpr std::size_t kMaxCandidates = 65'536;
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

bool ReadBootId(std::uint64_t id[2]) {
  char text[64] = {};
  const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t bytes = read(fd, text, sizeof text - 1);
  close(fd);
  std::string digits;
  for (ssize_t i = 0; i < bytes; ++i) {
    if (std::isxdigit(static_cast<unsigned char>(text[i]))) digits += text[i];
  }
  if (digits.size() != 32) return false;
  id[0] = std::strtoull(digits.substr(0, 16).c_str(), nullptr, 16);
  id[1] = std::strtoull(digits.substr(16).c_str(), nullptr, 16);
  return true;
}

RingSource::RingSource(RingSourceOptions options, state::Clock* clock) : options_(std::move(options)), clock_(clock) {
  ReadBootId(boot_id_);
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
  while (const dirent* entry = readdir(handle)) {
    const std::string_view name(entry->d_name);
    if (name.size() <= kStepsSuffix.size() || !name.ends_with(kStepsSuffix) || name.front() == '.') continue;
    if (present.size() >= kMaxCandidates) {
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
  MarkVanished(directory->path, present);
}

void RingSource::MarkVanished(const std::string& directory, const std::set<std::string>& present) {
  const auto is_gone = [&](const std::string& base) {
    return base.size() > directory.size() && base[directory.size()] == '/' && base.starts_with(directory) &&
           base.find('/', directory.size() + 1) == std::string::npos && !present.contains(base);
  };
  std::erase_if(candidates_, [&](const auto& entry) { return is_gone(entry.first); });
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
  for (auto it = attached_.begin(); it != attached_.end();) {
    Segment& segment = *it->second.segment;
    segment.CheckLiveness(sink, time, options_.liveness);
    segment.Drain(sink, time, options_.drain_budget, &result);
    if (const std::string error = segment.TakeError(); !error.empty()) {
      ++stats_.errors[error];
      spdlog::warn("ring {} is {} and is not read any further", segment.info()->ring_path, error);
    }
    if (segment.alive()) ++result.live_producers;
    if (segment.finished() && cursors.FindCursor(segment.info()->segment).ended) {
      // Its run was let go; the file lingers.
      Candidate& candidate = candidates_[it->first];
      candidate.leave_alone = true;
      if (it->second.vanished) candidates_.erase(it->first);
      it = attached_.erase(it);
      continue;
    }
    ++it;
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
