#include "vlmtrain/hub/repo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::hub {
namespace {

TEST(ModelReference, HasAnIdAndARevision) {
  EXPECT_EQ(parse_model_reference("Qwen/Qwen2.5-VL-3B-Instruct"),
            (Repo{RepoType::kModel, "Qwen/Qwen2.5-VL-3B-Instruct", "main"}));
  EXPECT_EQ(parse_model_reference("hf://a/b@v1.0"), (Repo{RepoType::kModel, "a/b", "v1.0"}));
  EXPECT_EQ(parse_model_reference("a/b@refs/pr/3").revision, "refs/pr/3");
  EXPECT_EQ(parse_model_reference("a/b@v1.0").to_string(), "a/b@v1.0");
  EXPECT_EQ(parse_model_reference("a/b").to_string(), "a/b");
  for (const char* text : {"",
                           "a",
                           "a/",
                           "/a",
                           "./a/b",
                           "../b",
                           "a/..",
                           "a/b/c",
                           "a/b.git",
                           "a--b/c",
                           "a/b@",
                           "a/b@../x",
                           "a/b@x/../y",
                           "a/b@/x",
                           "a b/c",
                           "a/.b",
                           "hf://datasets/a/b",
                           "hf://datasets/a",
                           "hf://models/a",
                           "a/b@.x",
                           "-a/b",
                           "a/b@x//y"}) {
    EXPECT_FALSE(is_model_reference(text)) << text;
    EXPECT_THROW(parse_model_reference(text), UserError) << text;
  }
}

TEST(DatasetReference, HasAConfigurationAndASplit) {
  EXPECT_EQ(parse_dataset_reference("hf://datasets/a/b"),
            (DatasetReference{{RepoType::kDataset, "a/b", "main"}, "", ""}));
  EXPECT_EQ(parse_dataset_reference("hf://datasets/a/b@v1/en:test"),
            (DatasetReference{{RepoType::kDataset, "a/b", "v1"}, "en", "test"}));
  EXPECT_EQ(parse_dataset_reference("hf://datasets/a/b:test").split, "test");
  EXPECT_EQ(parse_dataset_reference("hf://datasets/a/b/x/y").config, "x/y");
  EXPECT_EQ(parse_dataset_reference("hf://datasets/a/b@refs%2Fconvert%2Fparquet/c").repo.revision,
            "refs/convert/parquet");
  EXPECT_EQ(parse_dataset_reference("hf://datasets/a/b@v1").repo.to_string(), "hf://datasets/a/b@v1");
  for (const char* text : {"hf://datasets/a", "hf://datasets/", "hf://datasets/a/b:", "hf://datasets/a/b/", "a/b",
                           "hf://datasets/../b", "hf://datasets/a/b@"}) {
    EXPECT_THROW(parse_dataset_reference(text), UserError) << text;
  }
}

TEST(References, ErrorsFitOnALine) {
  for (const std::string& text :
       {std::string(), "a/b@" + std::string(5000, 'r'), std::string("a\nvlmtrain: error: b")}) {
    for (const bool is_dataset : {false, true}) {
      const std::string error = io::get_error_message(
          [&] {
            if (is_dataset) {
              parse_dataset_reference("hf://datasets/" + text);
            } else {
              parse_model_reference(text);
            }
          },
          ExitCode::kUsage);
      EXPECT_LT(error.size(), 250);
      EXPECT_THAT(error, testing::AllOf(testing::Not(testing::HasSubstr("\n")), testing::Not(testing::StartsWith(":")),
                                        testing::HasSubstr("write ")));
    }
  }
}

}  // namespace
}  // namespace vlmtrain::hub
