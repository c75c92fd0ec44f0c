#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "client/cpp/examples/train_text/checkpoint.h"
#include "tests/client/job.h"
#include "tests/scratch_directory.h"

namespace lossgauge::train_text {
namespace {

Checkpoint Example() {
  Checkpoint c;
  c.shape = {257, 2, 3, 4, Activation::kTanh};
  c.seed = 5;
  c.step = 99;
  c.updates = 98;
  c.loss_bits = 0x123456789abcdef0u;
  c.parameters = {1, 2, 3};
  c.first_moment = {4, 5, 6};
  c.second_moment = {7, 8, 9};
  return c;
}

TEST(Checkpoint, ComesBackAsItWas) {
  const ScratchDirectory scratch;
  const std::string path = CheckpointPath(scratch.path(), 99);
  EXPECT_EQ(path, scratch.path() + "/step-00000099.ckpt");
  ASSERT_EQ(SaveCheckpoint(path, Example()), "");
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
  Checkpoint c;
  ASSERT_EQ(LoadCheckpoint(path, &c), "");
  EXPECT_EQ(c.shape, Example().shape);
  EXPECT_EQ(c.seed, 5u);
  EXPECT_EQ(c.step, 99);
  EXPECT_EQ(c.updates, 98);
  EXPECT_EQ(c.loss_bits, Example().loss_bits);
  EXPECT_EQ(c.parameters, Example().parameters);
  EXPECT_EQ(c.first_moment, Example().first_moment);
  EXPECT_EQ(c.second_moment, Example().second_moment);
}

TEST(Checkpoint, IsRefusedWhenAnyByteIsWrongOrMissing) {
  const ScratchDirectory scratch;
  const std::string path = CheckpointPath(scratch.path(), 99);
  ASSERT_EQ(SaveCheckpoint(path, Example()), "");
  std::ifstream in(path, std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  const auto load = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    Checkpoint c;
    return LoadCheckpoint(path, &c);
  };
  EXPECT_EQ(load(good), "");
  for (std::size_t cut = 0; cut < good.size(); ++cut) EXPECT_NE(load(good.substr(0, cut)), "") << cut;
  std::string flipped = good;
  flipped.back() ^= 1;
  EXPECT_NE(load(flipped).find("damaged"), std::string::npos);
  std::string huge = good;
  huge[8 + 8 * 8 + 7] = 0x7f;  // the count's top byte: no memory may be asked for
  EXPECT_NE(load(huge).find("do not fit"), std::string::npos);
  EXPECT_NE(load("text"), "");
}

TEST(ListCheckpoints, GivesTheNewestFirstAndIgnoresUnfinishedOnes) {
  const ScratchDirectory scratch;
  for (const char* name : {"step-00000099.ckpt", "step-00000199.ckpt", "step-00000299.ckpt.partial", "notes.txt"}) {
    std::ofstream(scratch.path() + "/" + name) << "x";
  }
  EXPECT_EQ(ListCheckpoints(scratch.path()),
            (std::vector<std::string>{scratch.path() + "/step-00000199.ckpt", scratch.path() + "/step-00000099.ckpt"}));
  EXPECT_TRUE(ListCheckpoints(scratch.path() + "/none").empty());
}

TEST(SaveCheckpoint, NamesTheFileThatItCannotWrite) {
  const std::string error = SaveCheckpoint("/nonexistent/step-00000001.ckpt", Example());
  EXPECT_NE(error.find("/nonexistent/step-00000001.ckpt"), std::string::npos);
  EXPECT_NE(error.find("No such file"), std::string::npos);
}

}  // namespace
}  // namespace lossgauge::train_text
