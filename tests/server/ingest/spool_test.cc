#include "server/ingest/spool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/scratch_directory.h"

namespace lossgauge::ingest {
namespace {

class SpoolTest : public ::testing::Test {
 protected:
  void Open(std::uint64_t max_bytes = 1 << 20, std::uint64_t file_bytes = 4096, std::size_t readers = 1, bool in_memory = false) {
    spool_.reset();
    SpoolOptions options;
    if (!in_memory) options.directory = directory_ / "spool";
    options.max_bytes = max_bytes;
    options.file_bytes = file_bytes;
    options.readers = readers;
    auto spool = Spool::Open(options);
    ASSERT_TRUE(spool.ok()) << spool.status();
    spool_ = *std::move(spool);
  }
  std::uint64_t Append(const std::string& frame, std::uint64_t records = 1) {
    const auto sequence = spool_->Append(frame, records, [] { return "P:"; });
    EXPECT_TRUE(sequence.ok()) << sequence.status();
    return *sequence;
  }
  std::vector<std::string> ReadAll(std::uint64_t from = 1) {
    std::vector<std::string> all;
    for (auto frame = spool_->Read(from); frame; frame = spool_->Read(frame->sequence + 1)) all.push_back(frame->bytes);
    return all;
  }
  std::vector<std::string> Files() {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(directory_ / "spool")) files.push_back(entry.path().string());
    std::sort(files.begin(), files.end());
    return files;
  }

  ScratchDirectory directory_;
  std::unique_ptr<Spool> spool_;
};

TEST_F(SpoolTest, GivesFramesInOrderAndBeginsAFileWithWhatIsNeededToUnderstandIt) {
  Open();
  EXPECT_EQ(spool_->newest(), 0u);
  EXPECT_FALSE(spool_->Read(1));
  EXPECT_EQ(Append("a"), 1u);
  EXPECT_EQ(Append("b"), 2u);
  EXPECT_EQ(ReadAll(), (std::vector<std::string>{"P:a", "b"}));
  EXPECT_EQ(ReadAll(2), (std::vector<std::string>{"b"}));
  EXPECT_EQ(spool_->newest(), 2u);
}

TEST_F(SpoolTest, SurvivesTheProcess) {
  Open();
  Append("a");
  Append("b");
  Open();
  EXPECT_EQ(ReadAll(), (std::vector<std::string>{"P:a", "b"}));
  EXPECT_EQ(spool_->newest(), 2u);
  EXPECT_EQ(Append("c"), 3u);
  EXPECT_EQ(ReadAll(), (std::vector<std::string>{"P:a", "b", "P:c"})) << "who comes anew counts producers anew, and says so in a file of its own";
}

TEST_F(SpoolTest, CutsOffWhatWasHalfWrittenAndKeepsTheRest) {
  Open();
  Append("aaaa");
  Append("bbbb");
  Append("cccc");
  spool_.reset();
  ASSERT_EQ(Files().size(), 1u);
  const std::string file = Files()[0];
  const auto size = std::filesystem::file_size(file);
  for (std::uintmax_t cut = 1; cut <= 44; cut += 43) {  // of the last frame's bytes; all of it but a byte of its head
    std::filesystem::resize_file(file, size - cut);
    Open();
    EXPECT_EQ(ReadAll(), (std::vector<std::string>{"P:aaaa", "bbbb"})) << cut;
    std::ofstream(file, std::ios::app | std::ios::binary) << std::string(100, 'x');
    Open();
    EXPECT_EQ(ReadAll(), (std::vector<std::string>{"P:aaaa", "bbbb"}));
    Append("cccc");
    spool_.reset();
    for (const std::string& other : Files()) {
      if (other != file) std::filesystem::remove(other);
    }
    std::ofstream(file, std::ios::app | std::ios::binary) << std::string(size - std::filesystem::file_size(file), '\0');
  }
}

TEST_F(SpoolTest, AChangedByteEndsWhatIsBelievedOfAFile) {
  Open();
  Append("aaaa");
  Append("bbbb");
  spool_.reset();
  const std::string file = Files()[0];
  {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(std::filesystem::file_size(file)) - 2);
    bytes.put('x');
  }
  Open();
  EXPECT_EQ(ReadAll(), (std::vector<std::string>{"P:aaaa"}));
  EXPECT_EQ(spool_->newest(), 1u);
}

TEST_F(SpoolTest, DropsTheOldestBeyondItsSizeAndCountsWhatNobodyHad) {
  Open(20'000, 4096, 2);
  const std::string frame(1000, 'f');
  for (int i = 0; i < 3; ++i) Append(frame, 10);
  spool_->Release(0, 2);
  for (int i = 3; i < 100; ++i) Append(frame, 10);
  EXPECT_LE(spool_->bytes(), 20'000u);
  const auto oldest = spool_->Read(1);
  ASSERT_TRUE(oldest);
  EXPECT_GT(oldest->sequence, 70u);
  EXPECT_EQ(oldest->bytes.substr(0, 2), "P:");
  EXPECT_EQ(spool_->dropped(1), (oldest->sequence - 1) * 10);
  EXPECT_EQ(spool_->dropped(0), (oldest->sequence - 1 - 2) * 10) << "what a reader had released it did not lose";
  std::uint64_t on_disk = 0;
  for (const std::string& file : Files()) on_disk += std::filesystem::file_size(file);
  EXPECT_EQ(on_disk, spool_->bytes());
}

TEST_F(SpoolTest, RemovesWhatAllReadersHave) {
  Open(1 << 20, 4096, 2);
  const std::string frame(1000, 'f');
  for (int i = 0; i < 20; ++i) Append(frame);
  const std::size_t files = Files().size();
  ASSERT_GT(files, 3u);
  spool_->Release(0, 20);
  EXPECT_EQ(Files().size(), files) << "the other one has nothing yet";
  spool_->Release(1, 12);
  EXPECT_LT(Files().size(), files);
  EXPECT_EQ(spool_->Read(13)->sequence, 13u);
  spool_->Release(1, 20);
  EXPECT_EQ(Files().size(), 1u) << "the last one stays and keeps the numbering";
  Open(1 << 20, 4096, 2);
  EXPECT_EQ(Append("x"), 21u);
}

TEST_F(SpoolTest, SaysWhatStandsBeforeAFrameInItsFile) {
  Open();
  const std::string frame(1500, 'f');
  for (int i = 0; i < 5; ++i) Append(frame + std::to_string(i));  // 3 to a file
  const auto sequences = [&](std::uint64_t before) {
    std::vector<std::uint64_t> found;
    for (const SpoolFrame& f : spool_->Before(before)) found.push_back(f.sequence);
    return found;
  };
  EXPECT_EQ(sequences(1), (std::vector<std::uint64_t>{}));
  EXPECT_EQ(sequences(3), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(sequences(4), (std::vector<std::uint64_t>{}));
  EXPECT_EQ(sequences(6), (std::vector<std::uint64_t>{4, 5})) << "a frame that is still to come belongs to the last file";
}

TEST_F(SpoolTest, LivesInMemoryWithoutADirectory) {
  Open(20'000, 4096, 1, true);
  for (int i = 0; i < 100; ++i) Append(std::string(1000, 'f'));
  EXPECT_LE(spool_->bytes(), 20'000u);
  EXPECT_GT(spool_->dropped(0), 70u);
  EXPECT_EQ(spool_->Read(100)->sequence, 100u);
}

TEST_F(SpoolTest, AFrameThatCannotBeWrittenIsCountedAndTheNextOneStandsForItself) {
  Open();
  Append("a");
  std::filesystem::remove_all(directory_ / "spool");
  Append(std::string(5000, 'b'));  // into the open file
  EXPECT_FALSE(spool_->Append("c", 7, [] { return "P:"; }).ok()) << "a new file cannot be made";
  EXPECT_EQ(spool_->write_errors(), 1u);
  EXPECT_EQ(spool_->dropped(0), 7u);
  std::filesystem::create_directory(directory_ / "spool");
  EXPECT_EQ(Append("d"), 4u);
  EXPECT_EQ(spool_->Read(3)->bytes, "P:d");
}

TEST(Spool, NamesADirectoryThatCannotBeHad) {
  SpoolOptions options;
  options.directory = "/proc/nowhere/spool";
  const auto spool = Spool::Open(options);
  ASSERT_FALSE(spool.ok());
  EXPECT_NE(std::string(spool.status().message()).find("/proc/nowhere/spool"), std::string::npos);
}

}  // namespace
}  // namespace lossgauge::ingest
