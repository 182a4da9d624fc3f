#pragma once

#include <cstdint>

#include "vlmtrain/engine/gradient_sums.h"
#include "vlmtrain/engine/optimizer.h"

namespace vlmtrain::engine {

struct OwnSums {
  GradientSums sums;
};

/// An optimizer with sums of its own.
class SummingAdamW : public OwnSums, public AdamW {
 public:
  SummingAdamW(const nn::ParameterStore& store, const AdamWSettings& settings, int64_t groups = 1)
      : OwnSums{GradientSums(store, groups)}, AdamW(store, OwnSums::sums, settings) {}
};

}  // namespace vlmtrain::engine
