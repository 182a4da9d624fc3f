#pragma once

#include "engine/optimizer/update_rule.h"

namespace vlmtrain::engine {

/// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) with Nesterov's momentum,
/// as torch.optim.Muon of PyTorch 2.11, for the weights of Linears and of their adapters. It has the
/// moment `momentum`, in fp32.
extern const UpdateRuleEntry kMuonRule;

}  // namespace vlmtrain::engine
