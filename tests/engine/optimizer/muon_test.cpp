#include "engine/optimizer/muon.h"

#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "engine/small_parameters.h"
#include "engine/stored_tensors.h"
#include "vlmtrain/io/torch_file.h"

namespace vlmtrain::engine {
namespace {

/// A matrix that Muon trains. As in muon_steps.py.
struct MuonCase {
  const char* name;
  int64_t rows, columns;
  uint64_t gradients_per_step;
  MuonLrAdjustment adjustment;
};

constexpr std::array kMuonCases{
    MuonCase{"square", 64, 64, 1, MuonLrAdjustment::kMatchRmsAdamW},
    MuonCase{"wide", 48, 160, 1, MuonLrAdjustment::kMatchRmsAdamW},
    MuonCase{"tall", 160, 48, 1, MuonLrAdjustment::kMatchRmsAdamW},
    MuonCase{"tied", 40, 56, 2, MuonLrAdjustment::kMatchRmsAdamW},
    MuonCase{"lora_a", 8, 96, 1, MuonLrAdjustment::kOriginal},
    MuonCase{"lora_b", 96, 8, 1, MuonLrAdjustment::kOriginal},
};
constexpr uint64_t kTrainedSteps = 20;
constexpr int kCannotImportTorch = 77;

/// Limits ATen to one thread, so that the order of sums does not vary.
class SingleThread {
 public:
  SingleThread() : num_threads_(at::get_num_threads()) { at::set_num_threads(1); }
  ~SingleThread() { at::set_num_threads(num_threads_); }

 private:
  int num_threads_;
};

TEST(MuonTest, StepsEqualTorchBitByBit) {
  const SingleThread single_thread;
  const auto file = std::filesystem::temp_directory_path() / fmt::format("vlmtrain-muon-{}.pt", getpid());
  const std::string command =
      fmt::format("OMP_NUM_THREADS=1 {} -W ignore {}/tests/engine/optimizer/muon_steps.py {} {}", VLMTRAIN_PYTHON,
                  VLMTRAIN_SOURCE_DIR, VLMTRAIN_LIBTORCH, file.string());
  const int status = std::system(command.c_str());
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotImportTorch) {
    GTEST_SKIP() << VLMTRAIN_PYTHON << " cannot import torch of LibTorch's wheel; run scripts/setup.sh";
  }
  ASSERT_EQ(status, 0) << command;
  const auto tensors = io::read_torch_file(file);
  const std::map<std::string, at::Tensor> expected(tensors.begin(), tensors.end());
  for (size_t number = 0; number < kMuonCases.size(); ++number) {
    const MuonCase& muon_case = kMuonCases[number];
    nn::ParameterStore store{at::TensorOptions(at::kFloat)};
    const nn::ParameterScope scope(store, nn::Component::kLanguageModel, muon_case.name);
    scope.add_linear_weight({muon_case.rows, muon_case.columns}, nn::InitialValues::zeros());
    const at::Tensor weight = store.all().front().tensor;
    at::manual_seed(number);
    weight.detach().copy_(at::randn(weight.sizes()));
    if (muon_case.rows == 96) weight.detach().zero_();
    BucketedOptimizer optimizer(store, {.kind = OptimizerKind::kMuon,
                                        .muon = {.lr_adjustment = muon_case.adjustment},
                                        .weight_decay = 0.1,
                                        .max_grad_norm = 0});
    for (uint64_t step = 0; step < kTrainedSteps; ++step) {
      for (uint64_t use = 0; use < muon_case.gradients_per_step; ++use) {
        at::manual_seed(1000 + 100 * number + 2 * step + use);
        add_gradient(weight, at::randn(weight.sizes()));
      }
      optimizer.step({.language_model = 1e-2});
      EXPECT_TRUE(at::equal(weight.detach(), expected.at(fmt::format("{}.{}", muon_case.name, step))))
          << muon_case.name << ", step " << step;
    }
  }
  std::filesystem::remove(file);
}

/// Returns the values that five iterations in fp64 make of singular values with a norm of 1.
at::Tensor iterate_singular_values(at::Tensor values) {
  for (int step = 0; step < 5; ++step) values = values * 3.4445 + values.pow(3) * -4.7750 + values.pow(5) * 2.0315;
  return values;
}

/// The iteration changes only the singular values, so in fp64 it is a polynomial of each. In bf16 each
/// of five iterations rounds three matrices, with errors of 2⁻⁹ / √3 of their elements (uniformly
/// distributed): at most 1.7e-2 if all add up.
TEST(MuonTest, OrthogonalizesAsInFp64) {
  constexpr double kBound = 2e-2;
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{96, 96}, {64, 256}, {256, 64}}) {
    at::manual_seed(7);
    const at::Tensor matrix = at::randn({rows, columns});
    const NewtonSchulzBuffers buffers(matrix.numel(), std::min(rows, columns), matrix.options());
    const at::Tensor actual = orthogonalize(matrix, 5, buffers).to(at::kDouble);
    const auto [u, s, vh] = at::linalg_svd(matrix.to(at::kDouble), /*full_matrices=*/false);
    const at::Tensor expected = (u * iterate_singular_values(s / s.norm())).mm(vh);
    EXPECT_LT(((actual - expected).norm() / expected.norm()).item<double>(), kBound) << rows << " × " << columns;
    // Its direction is nearly that of U Vᵀ. A cosine of 0.96 belongs to singular values of 0.7 and 1.2.
    const at::Tensor direction = u.mm(vh);
    EXPECT_GT((actual.mul(direction).sum() / (actual.norm() * direction.norm())).item<double>(), 0.95);
  }
}

TEST(MuonTest, UpdatesLinearsAndAdaptersOnly) {
  nn::ParameterStore store{at::TensorOptions(at::kFloat)};
  const nn::ParameterScope scope(store, nn::Component::kLanguageModel, "model");
  scope.add_embedding("embed_tokens", {16, 8}, nn::InitialValues::ones());
  (scope / "q_proj").add_linear_weight({8, 8}, nn::InitialValues::ones());
  scope.add_parameter("q_proj.bias", {8}, nn::InitialValues::ones());
  scope.add_adapter_parameter("q_proj.lora_A.weight", {2, 8}, nn::InitialValues::ones());
  scope.add_parameter("lm_head.weight", {16, 8}, nn::InitialValues::ones());
  scope.add_parameter("patch_embedding.weight", {8, 3, 2, 2}, nn::InitialValues::ones());
  const BucketedOptimizer optimizer(store, {.kind = OptimizerKind::kMuon});
  std::vector<std::string> muon_names;
  for (const auto& [name, tensor] : read_tensors(optimizer.state())) {
    if (name.starts_with("momentum.")) muon_names.push_back(name);
  }
  EXPECT_EQ(muon_names,
            (std::vector<std::string>{"momentum.model.q_proj.weight", "momentum.model.q_proj.lora_A.weight"}));
}

TEST(MuonTest, StateOfAdamWIsReset) {
  Parameters parameters(at::kBFloat16, /*large=*/true);
  std::map<std::string, at::Tensor> saved;
  {
    BucketedOptimizer adamw(parameters.store(), {});
    add_gradients(parameters, random_gradients(parameters, 0, 1.0));
    adamw.step({1e-2, 1e-2, 1e-2});
    for (const auto& [name, tensor] : read_tensors(adamw.state())) saved[name] = tensor.clone();
  }
  BucketedOptimizer muon(parameters.store(), {.kind = OptimizerKind::kMuon});
  const auto result = muon.migrate_state(parameters.store(), saved, "a checkpoint");
  EXPECT_EQ(result.num_reset_parameters, 6) << "two Linears per component";
  EXPECT_EQ(result.num_migrated_parameters, std::ssize(parameters.store().all()) - 6);
  for (const auto& [name, master] : read_tensors(muon.master_weights()))
    EXPECT_TRUE(at::equal(master, saved.at("master." + name))) << name;
}

}  // namespace
}  // namespace vlmtrain::engine
