#pragma once

#include "engine/optimizer/update_rule.h"

namespace vlmtrain::engine {

/// AdamW (Loshchilov and Hutter 2017, arXiv 1711.05101), with the moments `first_moment` and
/// `second_moment`.
extern const UpdateRuleEntry kAdamWRule;

}  // namespace vlmtrain::engine
