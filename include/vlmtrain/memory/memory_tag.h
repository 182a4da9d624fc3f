#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace vlmtrain::memory {

/// The purpose of memory or work.
enum class Component {
  kOther,
  kWeights,
  kGradients,
  kOptimizer,
  kInput,      ///< a micro-batch: tokens, pixels, positions
  kVision,     ///< vision tower and projector: activations and temporaries
  kLanguage,   ///< language model: activations and temporaries
  kMasks,      ///< mask encoder and decoder: activations and temporaries
  kLoss,       ///< logits and tensors computed from them
  kWorkspace,  ///< memory that libraries keep, above all cuBLAS
};

inline constexpr int kNumComponents = 10;

/// Returns a name for messages: "vision activations".
std::string_view to_string(Component component);

/// The part of a training step to which an allocation belongs.
struct MemoryTag {
  Component component = Component::kOther;
  int block = -1;  ///< index within the component's tower; -1 outside of blocks

  bool operator==(const MemoryTag&) const = default;
};

/// A scope in which the calling thread's allocations belong to `component`. Scopes can be nested;
/// the innermost applies. Costs a few nanoseconds. Only AllocationTrace and the planner's cost
/// recorder read it.
class ComponentScope {
 public:
  explicit ComponentScope(Component component);
  ~ComponentScope();
  ComponentScope(const ComponentScope&) = delete;
  ComponentScope& operator=(const ComponentScope&) = delete;

 private:
  MemoryTag outer_tag_;
};

/// A ComponentScope for one block of the component's tower.
class BlockScope {
 public:
  BlockScope(Component component, int64_t block);
  ~BlockScope();
  BlockScope(const BlockScope&) = delete;
  BlockScope& operator=(const BlockScope&) = delete;

 private:
  MemoryTag outer_tag_;
};

/// Returns the tag of the innermost scope of the calling thread. In a backward pass without a
/// scope, returns the tag under which the forward pass created the current autograd node if a
/// MemoryTagRecorder exists, else a default tag.
MemoryTag get_current_memory_tag();

/// Returns whether the autograd engine runs a node on the calling thread.
bool is_in_backward();

/// Bytes, indexed by Component.
using ComponentBytes = std::array<int64_t, kNumComponents>;

/// The moment of a trace with the most allocated memory.
struct MemoryPeak {
  size_t event_index = 0;  ///< index into the trace
  int64_t allocated_bytes = 0;
  ComponentBytes bytes_by_component{};  ///< sums to allocated_bytes
  MemoryTag tag;                        ///< of the event
  bool is_backward = false;
};

}  // namespace vlmtrain::memory
