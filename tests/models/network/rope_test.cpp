#include "models/network/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "io/temporary_folder.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;

/// The file is written by tests/parity/reference/modules/rope.py.
TEST(Rope, FrequenciesMatchTransformers) {
  const auto cases = io::read_json(std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/models/data/rope.json");
  EXPECT_EQ(cases.size(), 7U);
  for (const auto& entry : cases) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const auto rope = RopeConfig::from_json(entry.at("config"), "config.json");
    EXPECT_DOUBLE_EQ(rope.scale, entry.at("scale").get<double>());
    const auto expected = entry.at("frequencies").get<std::vector<double>>();
    const at::Tensor actual = rope.compute_frequencies(entry.at("head_dim").get<int64_t>()).to(at::kDouble);
    ASSERT_EQ(actual.numel(), std::ssize(expected));
    const at::Tensor ratio = actual / at::tensor(expected, at::kDouble);
    EXPECT_LT((ratio - 1).abs().max().item<double>(), 3e-7);
  }
}

TEST(Rope, UnsupportedSettingsAreRefused) {
  const auto get_error = [](const char* rope_scaling) {
    const nlohmann::json config{{"rope_scaling", nlohmann::json::parse(rope_scaling)}};
    return get_error_message([&] { RopeConfig::from_json(config, "config.json"); });
  };
  EXPECT_THAT(get_error(R"({"type": "dynamic", "factor": 2.0})"),
              AllOf(HasSubstr("config.json"), HasSubstr("dynamic"), HasSubstr("yarn")));
  EXPECT_THAT(get_error(R"({"type": "linear"})"), HasSubstr("factor"));
  EXPECT_THAT(get_error(R"({"type": "linear", "factor": 0.5})"), HasSubstr("0.5"));
  EXPECT_THAT(get_error(R"({"type": "linear", "factor": 1e300})"), HasSubstr("factor"));
  EXPECT_THAT(get_error(R"({"type": "yarn", "factor": 2.0, "rope_theta": -5})"),
              AllOf(HasSubstr("rope_scaling"), HasSubstr("rope_theta is -5")));
  for (const char* key : {"original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"}) {
    const nlohmann::json yarn_config{{"type", "yarn"}, {"factor", 2.0}, {key, 0}};
    EXPECT_THAT(get_error(yarn_config.dump().c_str()), HasSubstr(key));
  }
  EXPECT_THAT(get_error(R"({"rope_type": "default", "partial_rotary_factor": 0.5})"),
              HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(get_error(R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0})"),
              HasSubstr("high_freq_factor"));
}

}  // namespace
}  // namespace vlmtrain::models
