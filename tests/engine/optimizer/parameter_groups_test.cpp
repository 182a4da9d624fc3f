#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "engine/optimizer/update_rule.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A store with parameters of each kind.
class ParameterGroupsTest : public testing::Test {
 protected:
  ParameterGroupsTest() : store_(at::TensorOptions(at::kFloat)) {
    const nn::ParameterScope vision(store_, nn::Component::kVisionTower, "model.visual");
    (vision / "blocks.0.mlp").add_linear_weight({4, 4}, nn::InitialValues::ones());
    vision.add_parameter("blocks.0.mlp.bias", {4}, nn::InitialValues::ones());
    const nn::ParameterScope language(store_, nn::Component::kLanguageModel, "model.layers.0");
    (language / "q_proj").add_linear_weight({4, 4}, nn::InitialValues::ones());
    language.add_adapter_parameter("q_proj.lora_A.weight", {2, 4}, nn::InitialValues::ones());
    language.add_adapter_parameter("q_proj.lora_B.weight", {4, 2}, nn::InitialValues::ones());
    language.add_parameter("norm.weight", {4}, nn::InitialValues::ones());
  }

  std::map<std::string, ParameterGroup> assign(const OptimizerSettings& settings) const {
    const auto groups = assign_parameter_groups(store_, settings);
    std::map<std::string, ParameterGroup> by_name;
    for (size_t i = 0; i < groups.size(); ++i) by_name[store_.all()[i].name] = groups[i];
    return by_name;
  }

  std::string assign_error(const OptimizerSettings& settings) const {
    try {
      assign(settings);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
    return "no error";
  }

  nn::ParameterStore store_;
};

constexpr LearningRates kGroupRates{.vision_tower = 1, .projector = 2, .language_model = 3, .schedule_factor = 0.5};

TEST_F(ParameterGroupsTest, WithoutSettingsMatricesDecayAtTheRateOfTheirComponent) {
  const auto groups = assign({.weight_decay = 0.1});
  EXPECT_EQ(groups.at("model.visual.blocks.0.mlp.weight").weight_decay, 0.1);
  EXPECT_EQ(groups.at("model.visual.blocks.0.mlp.bias").weight_decay, 0);
  EXPECT_EQ(groups.at("model.visual.blocks.0.mlp.bias").get_learning_rate(kGroupRates), 1);
  EXPECT_EQ(groups.at("model.layers.0.q_proj.weight").get_learning_rate(kGroupRates), 3);
  for (const auto& [name, group] : groups) EXPECT_EQ(group.rule, OptimizerKind::kAdamW) << name;
}

TEST_F(ParameterGroupsTest, MuonTakesLinearsAndAdapters) {
  const auto groups = assign({.kind = OptimizerKind::kMuon});
  for (const auto& [name, group] : groups) {
    const bool is_vector = name.ends_with("bias") || name.ends_with("norm.weight");
    EXPECT_EQ(group.rule, is_vector ? OptimizerKind::kAdamW : OptimizerKind::kMuon) << name;
  }
}

TEST_F(ParameterGroupsTest, EntriesSetLearningRateDecayAndRule) {
  const auto groups =
      assign({.kind = OptimizerKind::kMuon,
              .weight_decay = 0.1,
              .groups = {{.parameters = {"visual"}, .learning_rate = 1e-3, .weight_decay = 0.5},
                         {.parameters = {R"(.*lora_[AB]\.weight)"}, .optimizer = OptimizerKind::kAdamW}}});
  const auto& mlp = groups.at("model.visual.blocks.0.mlp.weight");
  EXPECT_EQ(mlp.get_learning_rate(kGroupRates), 0.5e-3) << "the schedule's factor applies";
  EXPECT_EQ(mlp.weight_decay, 0.5);
  EXPECT_EQ(mlp.rule, OptimizerKind::kMuon);
  EXPECT_EQ(groups.at("model.visual.blocks.0.mlp.bias").weight_decay, 0.5) << "it was set for this parameter";
  EXPECT_EQ(groups.at("model.layers.0.q_proj.lora_A.weight").rule, OptimizerKind::kAdamW);
  EXPECT_EQ(groups.at("model.layers.0.q_proj.weight").rule, OptimizerKind::kMuon);
}

TEST_F(ParameterGroupsTest, NoWeightDecayWinsOverAnEntry) {
  const auto groups = assign({.weight_decay = 0.1,
                              .groups = {{.parameters = {"visual"}, .weight_decay = 0.5}},
                              .no_weight_decay = {"bias", "q_proj.weight"}});
  EXPECT_EQ(groups.at("model.visual.blocks.0.mlp.bias").weight_decay, 0);
  EXPECT_EQ(groups.at("model.layers.0.q_proj.weight").weight_decay, 0);
  EXPECT_EQ(groups.at("model.layers.0.q_proj.lora_A.weight").weight_decay, 0.1) << "q_proj.weight is not a part of it";
}

TEST_F(ParameterGroupsTest, LoraPlusMultipliesTheRateOfB) {
  const auto groups = assign({.loraplus_lr_ratio = 16});
  EXPECT_EQ(groups.at("model.layers.0.q_proj.lora_A.weight").get_learning_rate(kGroupRates), 3);
  EXPECT_EQ(groups.at("model.layers.0.q_proj.lora_B.weight").get_learning_rate(kGroupRates), 48);
}

TEST_F(ParameterGroupsTest, InvalidPatternsAreRejected) {
  EXPECT_THAT(assign_error({.no_weight_decay = {"bias", "nrom"}}),
              AllOf(HasSubstr("training.no_weight_decay: nrom matches no trained parameter"),
                    HasSubstr("model.layers.0.norm.weight")));
  EXPECT_THAT(assign_error({.groups = {{.parameters = {"q_prj"}, .learning_rate = 1}}}),
              HasSubstr("training.parameter_groups: q_prj matches no trained parameter"));
  EXPECT_THAT(assign_error({.groups = {{.parameters = {"("}, .learning_rate = 1}}}),
              HasSubstr("training.parameter_groups: ( is an invalid regular expression"));
  EXPECT_THAT(assign_error({.groups = {{.parameters = {"layers.0"}, .learning_rate = 1},
                                       {.parameters = {"q_proj"}, .weight_decay = 0}}}),
              HasSubstr("model.layers.0.q_proj.weight matches entries 1 and 2"));
  EXPECT_THAT(assign_error({.groups = {{.parameters = {"norm", "bias"}, .optimizer = OptimizerKind::kMuon}}}),
              HasSubstr("muon cannot update any parameter that matches norm"));
}

TEST_F(ParameterGroupsTest, FrozenParametersDoNotMatch) {
  for (const auto& parameter : store_.all()) {
    at::Tensor tensor = parameter.tensor;
    if (parameter.component == nn::Component::kVisionTower) tensor.set_requires_grad(false);
  }
  EXPECT_THAT(assign_error({.groups = {{.parameters = {"visual"}, .learning_rate = 1}}}),
              HasSubstr("visual matches no trained parameter"));
}

}  // namespace
}  // namespace vlmtrain::engine
