#include "vlmtrain/io/torch_file.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "io/checkpoint/torch_file.h"
#include "io/temporary_folder.h"

namespace vlmtrain::io {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class TorchFile : public TemporaryFolderTest {
 protected:
  static fs::path golden_path(std::string_view name) {
    return fs::path(VLMTRAIN_SOURCE_DIR) / "tests/io/data" / fmt::format("torch_{}.pt", name);
  }

  static std::string get_error(const fs::path& path) {
    const std::string message = get_error_message([&] { read_torch_file(path); });
    EXPECT_THAT(message, HasSubstr(path.string()));
    return message;
  }

  static void expect_small_model(const NamedTensors& tensors) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors) names.push_back(name);
    ASSERT_THAT(names, ElementsAre("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var",
                                   "1.num_batches_tracked"));
    EXPECT_TRUE(at::equal(tensors[0].second, at::arange(6, at::kFloat).view({2, 3})));
    EXPECT_TRUE(at::equal(tensors[1].second, at::arange(2, at::kFloat) + 10));
    EXPECT_TRUE(at::equal(tensors[3].second, at::arange(2, at::kFloat) + 30));
    EXPECT_TRUE(at::equal(tensors[5].second, at::full({2}, 1.0)));
    EXPECT_TRUE(at::equal(tensors[6].second, at::zeros({}, at::kLong)));
  }
};

TEST_F(TorchFile, ReadsAStateDict) {
  expect_small_model(read_torch_file(golden_path("state")));
  expect_small_model(read_torch_file(golden_path("protocol_4")));
}

TEST_F(TorchFile, FindsANestedStateDict) {
  expect_small_model(read_torch_file(golden_path("training")));
}

TEST_F(TorchFile, ReadsTensorsOfAnyTypeAndStride) {
  std::map<std::string, at::Tensor> tensors;
  for (auto& [name, tensor] : read_torch_file(golden_path("tensors"))) tensors[name] = tensor;
  const at::Tensor base = at::arange(12, at::kFloat).view({3, 4});
  const std::map<std::string, at::Tensor> expected{{"base", base},
                                                   {"transposed", base.t()},
                                                   {"row", base[1]},
                                                   {"every_second", base.flatten().slice(0, 1, 12, 2)},
                                                   {"expanded", base.slice(0, 0, 1).expand({2, 4})},
                                                   {"parameter", base},
                                                   {"parameter_with_state", base + 100},
                                                   {"scalar", at::full({}, 2.5)},
                                                   {"empty", at::zeros({0, 4})},
                                                   {"float64", at::arange(5, at::kDouble)},
                                                   {"float32", at::arange(5, at::kFloat)},
                                                   {"float16", at::arange(5, at::kHalf)},
                                                   {"bfloat16", at::arange(5, at::kBFloat16)},
                                                   {"int64", at::arange(5, at::kLong)},
                                                   {"int32", at::arange(5, at::kInt)},
                                                   {"int16", at::arange(5, at::kShort)},
                                                   {"int8", at::arange(5, at::kChar)},
                                                   {"uint8", at::arange(5, at::kByte)},
                                                   {"bool", at::arange(5).to(at::kBool)}};
  EXPECT_EQ(tensors.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(tensors.contains(name)) << name;
    ASSERT_EQ(tensors[name].scalar_type(), tensor.scalar_type()) << name;
    ASSERT_EQ(tensors[name].sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(at::equal(tensors[name], tensor)) << name;
    EXPECT_FALSE(tensors[name].requires_grad()) << name;
  }
  EXPECT_EQ(tensors["transposed"].storage().data(), tensors["base"].storage().data());
}

TEST_F(TorchFile, ReportsUnsupportedFiles) {
  EXPECT_THAT(get_error(golden_path("legacy")), AllOf(HasSubstr("since PyTorch 1.6"), HasSubstr("save it again")));
  EXPECT_THAT(get_error(golden_path("module")),
              AllOf(HasSubstr("torch.nn.modules.container.Sequential"), HasSubstr("save its state_dict()")));
  EXPECT_THAT(get_error(golden_path("list")), HasSubstr("no dict of names to tensors"));
  EXPECT_THAT(get_error(golden_path("numbers")), HasSubstr("under model, state_dict, model_state_dict"));
  EXPECT_THAT(get_error(golden_path("complex")), AllOf(HasSubstr("spectrum"), HasSubstr("torch.ComplexFloatStorage")));
  EXPECT_THAT(get_error(put("text.pt", "not a checkpoint")), HasSubstr("zip format"));
  EXPECT_THAT(get_error(put("empty.pt", "")), HasSubstr("zip format"));
  EXPECT_THAT(get_error(folder() / "missing.pt"), HasSubstr("missing.pt"));
  EXPECT_THAT(get_error(put("pointer.pt", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")),
              HasSubstr("git lfs pull"));
}

TEST_F(TorchFile, RunsNoCode) {
  EXPECT_THAT(get_error(golden_path("command")), AllOf(HasSubstr("evil"), HasSubstr("posix.system")));
  EXPECT_FALSE(fs::exists("torch_file_has_run_code"));
}

TEST_F(TorchFile, ReportsTruncation) {
  const std::string content = read_contents(golden_path("tensors"));
  for (size_t bytes = 2; bytes < content.size(); bytes += 101) {
    EXPECT_THAT(get_error(put("cut.pt", content.substr(0, bytes))), HasSubstr("damaged or truncated")) << bytes;
  }
}

TEST_F(TorchFile, DamageOfTheArchiveIsRefusedOrHarmless) {
  std::string content = read_contents(golden_path("state"));
  for (size_t i = 0; i < content.size(); i += 7) {
    const char original = std::exchange(content[i], static_cast<char>(content[i] ^ 0x81));
    const fs::path path = put("damaged.pt", content);
    content[i] = original;
    try {
      for (const auto& [name, tensor] : read_torch_file(path)) EXPECT_LE(tensor.nbytes(), content.size());
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
    }
  }
}

// The test reads the pickle alone, because the checksums of an archive would detect each change.
// Each byte is changed to values that give other instructions, lengths and sizes.
TEST_F(TorchFile, DamageOfThePickleIsRefusedOrHarmless) {
  for (const std::string_view name : {"state", "protocol_4", "tensors", "training"}) {
    TorchArchive archive(golden_path(name));
    std::string pickle_content = archive.read_pickle();
    size_t num_refused = 0;
    for (size_t i = 0; i < pickle_content.size(); ++i) {
      for (const int change : {0x01, 0x04, 0x10, 0x81, 0xff}) {
        const char original = std::exchange(pickle_content[i], static_cast<char>(pickle_content[i] ^ change));
        try {
          const Unpickler pickle(pickle_content, "damaged", archive);
          EXPECT_LE(pickle.result().items.size(), pickle_content.size());
        } catch (const UserError& error) {
          EXPECT_EQ(error.code(), ExitCode::kBadData);
          ++num_refused;
        }
        pickle_content[i] = original;
      }
    }
    EXPECT_GT(num_refused, pickle_content.size() / 2);
    for (size_t bytes = 0; bytes < pickle_content.size(); ++bytes) {
      const std::string_view cut = std::string_view(pickle_content).substr(0, bytes);
      EXPECT_THAT(get_error_message([&] { const Unpickler pickle(cut, "damaged", archive); }), HasSubstr("damaged"))
          << bytes;
    }
  }
}

}  // namespace
}  // namespace vlmtrain::io
