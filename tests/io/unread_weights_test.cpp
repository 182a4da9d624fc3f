#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"

namespace vlmtrain::io {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";

class UnreadWeightsTest : public testing::Test {
 protected:
  void put(const std::string& file, const std::vector<std::string>& names, double value = 1) const {
    NamedTensors tensors;
    for (const auto& name : names) tensors.emplace_back(name, at::full({2}, value));
    write_safetensors(folder() / file, tensors);
  }
  void put_index(const std::string& map) const { write_file(folder() / kIndex, "{\"weight_map\": " + map + "}"); }
  std::string get_error() const {
    return get_error_message([&] { const CheckpointTensors tensors(folder()); });
  }
  const std::filesystem::path& folder() const { return folder_.path(); }

  const parity::TemporaryFolder folder_;
};

TEST_F(UnreadWeightsTest, OneSetOfWeightsHasNoUnreadFiles) {
  put(kFirst, {"a"});
  put(kSecond, {"b"});
  put_index(fmt::format(R"({{"a": "{}", "b": "{}"}})", kFirst, kSecond));
  put("consolidated.safetensors", {"c"});  // Mistral's own, which transformers does not read either
  EXPECT_THAT(list_weight_file_warnings(folder()), IsEmpty());
  std::filesystem::remove(folder() / kIndex);
  std::filesystem::remove(folder() / kFirst);
  std::filesystem::remove(folder() / kSecond);
  put("model.safetensors", {"a"});
  put_index(R"({"a": "model.safetensors"})");
  EXPECT_THAT(list_weight_file_warnings(folder()), IsEmpty());
}

TEST_F(UnreadWeightsTest, ReportsShardsNextToASingleFile) {
  put(kFirst, {"a"});
  put(kSecond, {"b"});
  put("model.safetensors", {"a", "b"}, 5);
  EXPECT_THAT(list_weight_file_warnings(folder()), ElementsAre(AllOf(HasSubstr("read from model.safetensors"),
                                                                     HasSubstr(kFirst), HasSubstr("are ignored"))));
  put_index(fmt::format(R"({{"a": "{}", "b": "{}"}})", kFirst, kSecond));
  EXPECT_THAT(list_weight_file_warnings(folder()),
              ElementsAre(AllOf(HasSubstr(folder().string()), HasSubstr("read from model.safetensors"),
                                HasSubstr(kIndex), HasSubstr("are ignored"))));
  EXPECT_EQ(CheckpointTensors(folder()).tensor("a")[0].item<float>(), 5);
}

TEST_F(UnreadWeightsTest, ReportsUnindexedShards) {
  put(kFirst, {"a"});
  put(kSecond, {"a", "b"});
  put_index(fmt::format(R"({{"a": "{}"}})", kFirst));
  EXPECT_THAT(list_weight_file_warnings(folder()), ElementsAre(AllOf(HasSubstr(kSecond), HasSubstr("does not name"))));
  put_index(fmt::format(R"({{"a": "{}", "b": "{}"}})", kFirst, kSecond));
  EXPECT_THAT(list_weight_file_warnings(folder()), ElementsAre(HasSubstr("a occur in two shards each")));
}

TEST_F(UnreadWeightsTest, ReadsTensorsMissingFromTheIndex) {
  put(kFirst, {"a", "forgotten"});
  put_index(fmt::format(R"({{"a": "{}"}})", kFirst));
  const CheckpointTensors tensors(folder());
  EXPECT_THAT(tensors.names(), UnorderedElementsAre("a", "forgotten"));
  EXPECT_EQ(tensors.tensor("forgotten")[0].item<float>(), 1);
}

TEST_F(UnreadWeightsTest, DescribesOtherFormats) {
  write_file(folder() / "model-Q4_K_M.gguf", "GGUF");
  EXPECT_THAT(get_error(), HasSubstr("quantized weights for llama.cpp"));
  put("diffusion_model.safetensors", {"a"});
  EXPECT_THAT(get_error(), AllOf(HasSubstr("diffusion_model.safetensors"),
                                 HasSubstr("rename the file of the whole model to model.safetensors")));
  put("consolidated.safetensors", {"a"});
  EXPECT_THAT(get_error(), HasSubstr("tensor names that differ from transformers'"));
  put(kFirst, {"a"});
  put(kSecond, {"b"});
  EXPECT_THAT(get_error(), AllOf(HasSubstr(kFirst), HasSubstr("but not their index"), HasSubstr(kIndex)));
}

}  // namespace
}  // namespace vlmtrain::io
