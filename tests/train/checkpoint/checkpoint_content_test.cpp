#include "train/checkpoint/checkpoint_content.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"

namespace vlmtrain::train {

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class OptimizerFilesTest : public io::TemporaryFolderTest {
 protected:
  void write_shard(int64_t rank, int64_t count) const {
    io::write_file(folder() / make_optimizer_file_name(rank, count), "a part");
  }
  std::string get_refusal() const {
    try {
      find_optimizer_files(folder());
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      return error.what();
    }
    ADD_FAILURE() << "they were taken";
    return {};
  }
};

TEST_F(OptimizerFilesTest, FindsOneFileOrAllShards) {
  EXPECT_THAT(find_optimizer_files(folder()), ElementsAre(folder() / "optimizer.safetensors"))
      << "the one that is missing";
  for (const int64_t rank : {1, 0, 2}) write_shard(rank, 3);
  EXPECT_THAT(find_optimizer_files(folder()), ElementsAre(folder() / "optimizer-00001-of-00003.safetensors",
                                                          folder() / "optimizer-00002-of-00003.safetensors",
                                                          folder() / "optimizer-00003-of-00003.safetensors"));
}

TEST_F(OptimizerFilesTest, NamesAMissingShard) {
  write_shard(2, 3);
  EXPECT_THAT(
      get_refusal(),
      HasSubstr("optimizer-00001-of-00003.safetensors: is missing, one of the 3 shards of the optimizer state"));
}

TEST_F(OptimizerFilesTest, RejectsTwoStates) {
  write_shard(0, 1);
  for (const int64_t rank : {0, 1}) write_shard(rank, 2);
  EXPECT_THAT(get_refusal(), HasSubstr("in 2 shards and an unsharded one"));
  write_shard(0, 4);
  EXPECT_THAT(get_refusal(), AllOf(HasSubstr("in 2 and in 4 shards")));
}

TEST_F(OptimizerFilesTest, IgnoresOtherFileNames) {
  for (const char* name : {"optimizer-00000-of-00002.safetensors", "optimizer-00003-of-00002.safetensors",
                           "optimizer-1-of-2.safetensors", "optimizer-00001-of-00002.safetensors.bak"}) {
    io::write_file(folder() / name, "something else");
  }
  EXPECT_THAT(find_optimizer_files(folder()), ElementsAre(folder() / "optimizer.safetensors"));
}

}  // namespace

}  // namespace vlmtrain::train
