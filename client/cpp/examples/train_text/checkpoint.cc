#include "client/cpp/examples/train_text/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "client/cpp/examples/train_text/random.h"

namespace lossgauge::train_text {
namespace {

struct Header {
  char magic[8] = {'L', 'G', 'T', 'E', 'X', 'T', '0', '1'};
  std::uint64_t seed = 0;
  std::int64_t vocab_size = 0, context = 0, embedding = 0, hidden = 0, activation = 0;
  std::int64_t step = 0, updates = 0, parameter_count = 0;
  std::uint64_t loss_bits = 0;
  std::uint64_t checksum = 0;  // of the three arrays
};

std::uint64_t Checksum(const std::vector<float>& values, std::uint64_t sum) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, &values[i], sizeof(bits));
    sum = MixBits(sum ^ bits);
  }
  return sum;
}

std::uint64_t Checksum(const Checkpoint& c) { return Checksum(c.second_moment, Checksum(c.first_moment, Checksum(c.parameters, 1))); }

std::string Failure(const std::string& path, const char* what) { return "checkpoint " + path + ": " + what + ": " + std::strerror(errno); }

bool WriteAll(int file, const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = write(file, at, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    at += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return true;
}

bool ReadAll(int file, void* data, std::size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t done = read(file, at, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    at += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return true;
}

}  // namespace

std::string CheckpointPath(const std::string& directory, std::int64_t step) {
  char name[64];
  std::snprintf(name, sizeof(name), "step-%08lld.ckpt", static_cast<long long>(step));
  return directory + "/" + name;
}

std::string SaveCheckpoint(const std::string& path, const Checkpoint& checkpoint) {
  Header header;
  header.seed = checkpoint.seed;
  header.vocab_size = checkpoint.shape.vocab_size;
  header.context = checkpoint.shape.context;
  header.embedding = checkpoint.shape.embedding;
  header.hidden = checkpoint.shape.hidden;
  header.activation = static_cast<std::int64_t>(checkpoint.shape.activation);
  header.step = checkpoint.step;
  header.updates = checkpoint.updates;
  header.parameter_count = static_cast<std::int64_t>(checkpoint.parameters.size());
  header.loss_bits = checkpoint.loss_bits;
  header.checksum = Checksum(checkpoint);

  const std::string partial = path + ".partial";
  const int file = open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return Failure(partial, "cannot be made");
  const std::size_t bytes = checkpoint.parameters.size() * sizeof(float);
  const bool written = WriteAll(file, &header, sizeof(header)) && WriteAll(file, checkpoint.parameters.data(), bytes) &&
                       WriteAll(file, checkpoint.first_moment.data(), bytes) && WriteAll(file, checkpoint.second_moment.data(), bytes) &&
                       fsync(file) == 0;
  std::string error;
  if (!written) error = Failure(partial, "cannot be written");
  if (close(file) != 0 && error.empty()) error = Failure(partial, "cannot be closed");
  if (error.empty() && rename(partial.c_str(), path.c_str()) != 0) error = Failure(path, "cannot be renamed into place");
  if (!error.empty()) unlink(partial.c_str());
  return error;
}

std::string LoadCheckpoint(const std::string& path, Checkpoint* checkpoint) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return Failure(path, "cannot be opened");
  Header header;
  const Header expected;
  std::string error;
  if (!ReadAll(file, &header, sizeof(header)) || std::memcmp(header.magic, expected.magic, sizeof(header.magic)) != 0) {
    error = "checkpoint " + path + ": not a checkpoint of this program";
  } else {
    Checkpoint& c = *checkpoint;
    c.shape = {header.vocab_size, header.context, header.embedding, header.hidden, header.activation == 0 ? Activation::kGelu : Activation::kTanh};
    c.seed = header.seed;
    c.step = header.step;
    c.updates = header.updates;
    c.loss_bits = header.loss_bits;
    // The count comes from a file: the file's own size bounds it before memory is asked for.
    const off_t size = lseek(file, 0, SEEK_END);
    const std::int64_t count = header.parameter_count;
    if (count < 0 || count > size || static_cast<off_t>(sizeof(header) + 12 * static_cast<std::size_t>(count)) != size) {
      error = "checkpoint " + path + ": " + std::to_string(size) + " bytes do not fit " + std::to_string(count) + " parameters";
    } else {
      const auto n = static_cast<std::size_t>(count);
      for (std::vector<float>* values : {&c.parameters, &c.first_moment, &c.second_moment}) values->resize(n);
      const std::size_t bytes = n * sizeof(float);
      if (lseek(file, sizeof(header), SEEK_SET) < 0 || !ReadAll(file, c.parameters.data(), bytes) || !ReadAll(file, c.first_moment.data(), bytes) ||
          !ReadAll(file, c.second_moment.data(), bytes)) {
        error = Failure(path, "cannot be read");
      } else if (Checksum(c) != header.checksum) {
        error = "checkpoint " + path + ": the checksum does not match: the file is damaged";
      }
    }
  }
  close(file);
  return error;
}

std::vector<std::string> ListCheckpoints(const std::string& directory) {
  namespace fs = std::filesystem;
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.rfind("step-", 0) == 0 && entry->path().extension() == ".ckpt") paths.push_back(directory + "/" + name);
  }
  // Names are padded, so their order is the order of steps.
  std::sort(paths.rbegin(), paths.rend());
  return paths;
}

}  // namespace lossgauge::train_text
