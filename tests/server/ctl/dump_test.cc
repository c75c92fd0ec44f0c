#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "server/ctl/record_fields.h"
#include "tests/scratch_directory.h"
#include "tests/server/ctl/session.h"
#include "tests/server/fake_producer.h"

namespace lossgauge::ctl {
namespace {

using ::lossgauge::testing::FakeProducer;
using ::lossgauge::testing::FakeProducerOptions;
using ::testing::HasSubstr;
using ::testing::Not;

class CtlDump : public ::testing::Test {
 protected:
  FakeProducerOptions Options() {
    FakeProducerOptions options;
    options.directory = directory.path();
    options.run = "demo";
    return options;
  }

  std::string WriteFile(const std::string& name, const std::string& bytes) {
    const std::string path = directory.path() + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  ScratchDirectory directory;
  Session session;
};

TEST_F(CtlDump, ShowsHeaderStatusAndEveryFieldOfARecord) {
  FakeProducer producer(Options());
  producer.PublishSteps(0, 2);
  ASSERT_EQ(session.Run({"dump", producer.steps_path()}), 0) << session.err;
  for (const char* text : {"step ring, ABI 1.0", "demo", "rank 0 of 1", "3 records", "alive: its lock is held", "3 valid, 0 torn, 0 invalid, 509 never",
                           "#1  step 0", "#3  step 2"}) {
    EXPECT_THAT(session.out, HasSubstr(text));
  }
  for (const Field& field : StepFields()) {
    if (HasField(field, producer.last().present)) EXPECT_THAT(session.out, HasSubstr(std::string(" ") + field.name + "="));
    else EXPECT_THAT(session.out, Not(HasSubstr(std::string(" ") + field.name + "=")));
  }
  EXPECT_LE(LongestLine(session.out.substr(session.out.find('\n'))), 80u);
}

// A GPU leaves the cursor one behind.
TEST_F(CtlDump, CountsARecordThatTheCursorDoesNotTellOf) {
  FakeProducer producer(Options());
  producer.PublishSteps(0, 2);
  std::fstream file(producer.steps_path(), std::ios::binary | std::ios::in | std::ios::out);
  const std::uint64_t behind = 2;
  file.seekp(offsetof(lg_ring_header, cursor));
  file.write(reinterpret_cast<const char*>(&behind), sizeof behind);
  file.close();
  ASSERT_EQ(session.Run({"dump", producer.steps_path()}), 0) << session.err;
  EXPECT_THAT(session.out, HasSubstr("3 records"));
  EXPECT_THAT(session.out, HasSubstr("#3  step 2"));
}

TEST_F(CtlDump, ReadsTheRingOfADeadProducer) {
  FakeProducer producer(Options());
  producer.PublishSteps(0, 4);
  producer.Die();
  ASSERT_EQ(session.Run({"dump", producer.steps_path()}), 0);
  EXPECT_THAT(session.out, HasSubstr("gone: nobody holds its lock"));
  EXPECT_THAT(session.out, HasSubstr("#5  step 4"));
}

TEST_F(CtlDump, ShowsOnlyTheTailAndAllOnRequest) {
  FakeProducer producer(Options());
  producer.PublishSteps(0, 599);  // laps the ring of 512
  ASSERT_EQ(session.Run({"dump", producer.steps_path(), "--tail=2"}), 0);
  EXPECT_THAT(session.out, HasSubstr("The newest 2 of 512"));
  EXPECT_THAT(session.out, Not(HasSubstr("#598  ")));
  EXPECT_THAT(session.out, HasSubstr("#599  step 598"));
  ASSERT_EQ(session.Run({"dump", producer.steps_path(), "--tail=0"}), 0);
  EXPECT_THAT(session.out, HasSubstr("#89  step 88"));
  EXPECT_THAT(session.out, Not(HasSubstr("#88  ")));
}

TEST_F(CtlDump, MarksATornRecordWhichIsNoFault) {
  FakeProducer producer(Options());
  producer.PublishSteps(0, 1);
  producer.Tear(2);
  EXPECT_EQ(session.Run({"dump", producer.steps_path()}), 0);
  EXPECT_THAT(session.out, HasSubstr("#3  torn: it is being written, or its producer died"));
  EXPECT_THAT(session.out, HasSubstr("2 valid, 1 torn, 0 invalid"));
}

TEST_F(CtlDump, MarksAFlippedBitAndExitsWithOne) {
  FakeProducer producer(Options());
  producer.PublishSteps(0, 1);
  producer.Corrupt(20);
  EXPECT_EQ(session.Run({"dump", producer.steps_path()}), 1);
  EXPECT_THAT(session.out, HasSubstr("#2  invalid: checksum does not match"));
  EXPECT_THAT(session.out, HasSubstr("1 valid, 0 torn, 1 invalid"));
}

TEST_F(CtlDump, MarksARecordThatMakesNoSense) {
  FakeProducer producer(Options());
  lg_step_record record = producer.MakeStep(0);
  record.finite_tokens = record.unmasked_tokens + 1;
  producer.Publish(record);
  EXPECT_EQ(session.Run({"dump", producer.steps_path()}), 1);
  EXPECT_THAT(session.out, HasSubstr("invalid: bad_counts"));
}

TEST_F(CtlDump, ShowsEvents) {
  FakeProducer producer(Options());
  producer.PublishEvent(LG_EVENT_CHECKPOINT, 40, "/ckpt/\x1b[2J40.pt");
  producer.PublishEvent(LG_EVENT_EVALUATION, 41, "", 2.5, 1000);
  ASSERT_EQ(session.Run({"dump", producer.events_path()}), 0);
  EXPECT_THAT(session.out, HasSubstr("event ring"));
  EXPECT_THAT(session.out, HasSubstr("kind=checkpoint step=40"));
  EXPECT_THAT(session.out, HasSubstr("text=\"/ckpt/\\x1b[2J40.pt\""));
  EXPECT_THAT(session.out, HasSubstr("value=2.5"));
}

TEST_F(CtlDump, WritesJsonThatParses) {
  FakeProducerOptions options = Options();
  options.run = "odd \" \\ \n \xff name";
  FakeProducer producer(options);
  producer.PublishSteps(0, 1);
  lg_step_record record = producer.MakeStep(2);
  record.grad_norm = std::numeric_limits<double>::quiet_NaN();
  producer.Publish(record);
  producer.Tear(3);
  ASSERT_EQ(session.Run({"dump", producer.steps_path(), "--json"}), 0);
  google::protobuf::Struct parsed;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(session.out, &parsed).ok()) << session.out;
  const auto& fields = parsed.fields();
  EXPECT_EQ(fields.at("state").string_value(), "valid");
  EXPECT_EQ(fields.at("header").struct_value().fields().at("run").string_value(), "odd \" \\ \n \xef\xbf\xbd name");
  const auto& records = fields.at("records").list_value();
  ASSERT_EQ(records.values_size(), 4);
  EXPECT_EQ(records.values(2).struct_value().fields().at("grad_norm").string_value(), "NaN");
  EXPECT_EQ(records.values(2).struct_value().fields().at("step").string_value(), "2");
  EXPECT_EQ(records.values(3).struct_value().fields().at("state").string_value(), "torn");
}

TEST_F(CtlDump, NamesWhatIsWrongWithAFile) {
  FakeProducerOptions other_major = Options();
  other_major.edit_identity = [](lg_ring_identity* identity) { identity->abi_major = 2; };
  FakeProducer newer(other_major);
  FakeProducerOptions other_order = Options();
  other_order.rank = 1;
  other_order.edit_identity = [](lg_ring_identity* identity) { identity->byte_order = __builtin_bswap32(LG_RING_BYTE_ORDER); };
  FakeProducer foreign(other_order);
  FakeProducerOptions healthy = Options();
  healthy.rank = 2;
  FakeProducer cut(healthy);
  std::filesystem::resize_file(cut.steps_path(), 5000);
  const struct {
    std::string path;
    std::string said;
  } cases[] = {
      {directory.path() + "/none.steps", "No such file"},
      {directory.path(), "not a file"},
      {WriteFile("empty.steps", ""), "the file is empty"},
      {WriteFile("short.steps", "hello"), "less than a header"},
      {WriteFile("foreign.steps", std::string(8192, 'x')), "not a lossgauge ring"},
      {WriteFile("zeros.steps", std::string(8192, '\0')), "not ready"},
      {newer.steps_path(), "ABI 2.0, this reader knows ABI 1."},
      {foreign.steps_path(), "other byte order"},
      {cut.steps_path(), "the file has 5000 bytes, its header announces"},
  };
  for (const auto& one : cases) {
    EXPECT_EQ(session.Run({"dump", one.path}), 1) << one.said;
    EXPECT_THAT(session.err, HasSubstr(one.said));
    EXPECT_THAT(session.err, HasSubstr(one.path));
    EXPECT_EQ(session.out, "");
  }
}

TEST_F(CtlDump, DoesNotWaitForANamedPipe) {
  const std::string path = directory.path() + "/pipe.steps";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(session.Run({"dump", path}), 1);
  EXPECT_THAT(session.err, HasSubstr("not a file"));
}

TEST_F(CtlDump, SurvivesAHeaderFullOfExtremes) {
  FakeProducerOptions options = Options();
  options.edit_identity = [](lg_ring_identity* identity) {
    identity->created_wall_ns = INT64_MIN;
    identity->attempt_start_wall_ns = INT64_MAX;
    identity->layout.shard_offset = INT64_MAX;
    identity->layout.shard_columns = INT64_MAX;
    identity->layout.gradient_reduction = 77;
    std::memset(identity->run, 0xff, sizeof identity->run);
    std::memset(identity->block_names, 'x', sizeof identity->block_names);
  };
  FakeProducer producer(options);
  EXPECT_EQ(session.Run({"dump", producer.steps_path()}), 0) << session.err;
  EXPECT_THAT(session.out, HasSubstr("\\xff"));
  EXPECT_EQ(session.Run({"dump", producer.steps_path(), "--json"}), 0);
}

}  // namespace
}  // namespace lossgauge::ctl
