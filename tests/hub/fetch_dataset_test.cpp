#include <gmock/gmock.h>

#include "hub/hub_server.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/hub/snapshot.h"

namespace vlmtrain::hub {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class FetchDataset : public HubTest {
 protected:
  /// Returns the paths of a split's files in the repository.
  std::vector<std::string> fetch(const std::string& reference) const {
    const auto snapshot = fetch_dataset(settings_, parse_dataset_reference("hf://datasets/org/data" + reference));
    const auto folder = settings_.cache / "datasets--org--data/snapshots" / snapshot.repo.revision;
    std::vector<std::string> names;
    for (const auto& file : snapshot.files) {
      EXPECT_TRUE(std::filesystem::exists(file));
      names.push_back(file.lexically_relative(folder).string());
    }
    return names;
  }

  std::string fail(const std::string& reference) const {
    return io::get_error_message([&] { fetch(reference); }, ExitCode::kUsage);
  }
};

TEST_F(FetchDataset, SplitsFollowFromNames) {
  write_dataset("data/train-00000-of-00010.parquet", "a");
  write_dataset("data/train-00002-of-00010.parquet", "b");
  write_dataset("data/train-00010-of-00010.parquet", "c");
  write_dataset("data/validation-00000-of-00001.parquet", "d");
  write_dataset("dataset_infos.json", "{}");
  EXPECT_THAT(fetch(""), ElementsAre("data/train-00000-of-00010.parquet", "data/train-00002-of-00010.parquet",
                                     "data/train-00010-of-00010.parquet"));
  EXPECT_THAT(fetch(":validation"), ElementsAre("data/validation-00000-of-00001.parquet"));
  EXPECT_THAT(fail(":test"), AllOf(HasSubstr("has no split test"), HasSubstr(":train, :validation")));
}

TEST_F(FetchDataset, FilesOfOtherSplitsAreNotDownloaded) {
  write_dataset("train.jsonl", "{}");
  write_dataset("test.jsonl", "{}");
  fetch("");
  for (const auto& request : requests()) EXPECT_THAT(request["path"], testing::Not(HasSubstr("test.jsonl")));
}

TEST_F(FetchDataset, WithoutSplitsAllFilesAreTrain) {
  write_dataset("shards/2.tar", "a");
  write_dataset("shards/10.tar", "b");
  write_dataset("README.md", "# No metadata");
  EXPECT_THAT(fetch(""), ElementsAre("shards/2.tar", "shards/10.tar"));
  EXPECT_THAT(fetch("/shards"), ElementsAre("shards/2.tar", "shards/10.tar"));
  EXPECT_THAT(fail("/other"), HasSubstr("has no .parquet, .tar, .jsonl, .json files in other"));
}

TEST_F(FetchDataset, MetadataNamesConfigurationsAndPatterns) {
  write_dataset(
      "README.md",
      "---\nlicense: mit\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/*.parquet\n"
      "  - split: test\n    path: [held/**/x.parquet]\n- config_name: fr\n  data_files: fr/[ab]?.parquet\n"
      "  default: true\n- config_name: all\n  data_dir: en\n---\n# Data\n");
  for (const char* file : {"en/1.parquet", "en/deep/2.parquet", "fr/a1.parquet", "fr/c1.parquet", "held/x.parquet",
                           "held/a/b/x.parquet"}) {
    write_dataset(file, file);
  }
  EXPECT_THAT(fetch(""), ElementsAre("fr/a1.parquet"));
  EXPECT_THAT(fetch("/en"), ElementsAre("en/1.parquet"));
  EXPECT_THAT(fetch("/en:test"), ElementsAre("held/a/b/x.parquet", "held/x.parquet"));
  EXPECT_THAT(fetch("/all"), ElementsAre("en/1.parquet", "en/deep/2.parquet"));
  EXPECT_THAT(fail("/de"), AllOf(HasSubstr("has no configuration de"), HasSubstr("en, fr, all")));
}

TEST_F(FetchDataset, MetadataMayFollowAByteOrderMark) {
  write_dataset("README.md", "\xEF\xBB\xBF---\r\nconfigs:\r\n- data_files: b.parquet\r\n---\r\n");
  write_dataset("a.parquet", "a");
  write_dataset("b.parquet", "b");
  EXPECT_THAT(fetch(""), ElementsAre("b.parquet"));
}

TEST_F(FetchDataset, PatternsAreThoseOfFsspec) {
  for (const char* file : {"data/train-0.parquet", "data/test-0.parquet", "data/other-0.parquet"})
    write_dataset(file, file);
  const auto fetch_pattern = [&](const std::string& pattern) {
    write_dataset("README.md", "---\nconfigs:\n- data_files: '" + pattern + "'\n---\n");
    std::filesystem::remove_all(settings_.cache);
    return fetch("");
  };
  EXPECT_THAT(fetch_pattern("./data/{train,test}-*"), ElementsAre("data/test-0.parquet", "data/train-0.parquet"));
  EXPECT_THAT(fetch_pattern("data/[!t]*"), ElementsAre("data/other-0.parquet"));
  for (const char* folder : {"data", "./data/"}) EXPECT_EQ(fetch_pattern(folder).size(), 3) << folder;
  EXPECT_THROW(fetch_pattern("dat"), UserError);
  EXPECT_THROW(fetch_pattern("data/[z-a]*"), UserError);
  EXPECT_THROW(fetch_pattern("none/*"), UserError);
}

TEST_F(FetchDataset, InvalidMetadataNamesTheFile) {
  write_dataset("README.md", "---\nconfigs: [unclosed\n---\n");
  write_dataset("train.parquet", "a");
  EXPECT_THAT(io::get_error_message([&] { fetch(""); }),
              HasSubstr("README.md: its metadata is invalid at line 3; report it"));
  write_dataset("README.md", "---\nconfigs:\n- data_files:\n  - split: train\n---\n");
  std::filesystem::remove_all(settings_.cache);
  EXPECT_THAT(io::get_error_message([&] { fetch(""); }), HasSubstr("README.md: its metadata is invalid; report it"));
}

TEST_F(FetchDataset, NamesAreShortened) {
  std::string readme = "---\nconfigs:\n";
  for (int i = 0; i < 100; ++i)
    readme += "- config_name: \"config_" + std::to_string(i) + "\\n\"\n  data_files: a.tar\n";
  write_dataset("README.md", readme + "---\n");
  write_dataset("a.tar", "a");
  EXPECT_THAT(fail("/" + std::string(5000, 'c')),
              AllOf(HasSubstr("has no configuration ccc"), HasSubstr("config_19\\n and 80 more"),
                    testing::SizeIs(testing::Lt(800U))));
  EXPECT_THAT(fail("/config_0\n:" + std::string(5000, 's')),
              AllOf(HasSubstr("has no split sss"), testing::SizeIs(testing::Lt(300U))));
}

TEST_F(FetchDataset, UnsupportedFormatsAreNamed) {
  write_dataset("train.csv", "a,b");
  EXPECT_THAT(fail(""), HasSubstr("has no .parquet"));
  write_dataset("README.md", "---\nconfigs:\n- config_name: default\n  data_files: train.csv\n---\n");
  std::filesystem::remove_all(settings_.cache);
  EXPECT_THAT(fail(""), AllOf(HasSubstr("train.csv"), HasSubstr("formats .parquet")));
}

}  // namespace
}  // namespace vlmtrain::hub
