#pragma once

#include <cstdint>

#include "vlmtrain/engine/gradients/gradient_buckets.h"
#include "vlmtrain/engine/optimizer/optimizer.h"

namespace vlmtrain::engine {

/// A base class, so that the buckets are constructed before the optimizer.
struct OwnedBuckets {
  GradientBuckets gradient_buckets;
};

/// An optimizer that owns its gradient buckets.
class BucketedOptimizer : public OwnedBuckets, public Optimizer {
 public:
  BucketedOptimizer(const nn::ParameterStore& store, const OptimizerSettings& settings, int64_t groups = 1,
                    Offload offload = Offload::kNone)
      : OwnedBuckets{GradientBuckets(store, groups)},
        Optimizer(store, OwnedBuckets::gradient_buckets, settings, offload) {}
};

}  // namespace vlmtrain::engine
