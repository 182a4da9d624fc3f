#pragma once

#include <cstdint>
#include <string_view>

namespace vlmtrain::memory {

/// What memory is used for, and what work is done for.
enum class Component {
  kOther,
  kWeights,
  kGradients,
  kOptimizer,
  kInput,      ///< a micro-batch: tokens, pixels, positions
  kVision,     ///< vision tower and projector: activations and temporaries
  kLanguage,   ///< language model: activations and temporaries
  kMasks,      ///< mask encoder and decoder: activations and temporaries
  kLoss,       ///< logits and what is made of them
  kWorkspace,  ///< what libraries keep for themselves, cuBLAS above all
};

inline constexpr int kNumComponents = 10;

/// As people read it: "vision activations".
std::string_view to_string(Component component);

/// Where in a step a thread is.
struct MemoryTag {
  Component component = Component::kOther;
  int block = -1;  ///< of the component's tower; -1 outside its blocks

  bool operator==(const MemoryTag&) const = default;
};

/// The calling thread is at `component` for as long as the guard lives. Costs a few nanoseconds; only a trace
/// (memory/trace.h) takes note of it.
class ComponentScope {
 public:
  explicit ComponentScope(Component component);
  ~ComponentScope();
  ComponentScope(const ComponentScope&) = delete;
  ComponentScope& operator=(const ComponentScope&) = delete;

 private:
  MemoryTag outer_;
};

/// In a block of the component's tower.
class BlockScope {
 public:
  BlockScope(Component component, int64_t block);
  ~BlockScope();
  BlockScope(const BlockScope&) = delete;
  BlockScope& operator=(const BlockScope&) = delete;

 private:
  MemoryTag outer_;
};

/// Where the calling thread is: what guards say, or, in a backward pass, where the forward pass was when it made the
/// node that runs now. The latter is known while MemoryTagRecorder is on.
MemoryTag current_memory_tag();

/// True while the autograd engine runs a node on the calling thread.
bool is_in_backward();

/// Remembers, from start to end, at which place each autograd node is made. One at a time in a process.
class MemoryTagRecorder {
 public:
  MemoryTagRecorder();
  ~MemoryTagRecorder();
  MemoryTagRecorder(const MemoryTagRecorder&) = delete;
  MemoryTagRecorder& operator=(const MemoryTagRecorder&) = delete;

  /// Forgets the nodes so far; to be called between steps.
  static void clear();
};

}  // namespace vlmtrain::memory
