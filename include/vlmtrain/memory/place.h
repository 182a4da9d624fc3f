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

inline constexpr int kComponents = 10;

/// As people read it: "vision activations".
std::string_view name_of(Component component);

/// Where in a step a thread is.
struct Place {
  Component component = Component::kOther;
  int block = -1;  ///< of the component's tower; -1 outside its blocks

  bool operator==(const Place&) const = default;
};

/// The calling thread is at `component` for as long as the guard lives. Costs a few nanoseconds; only a trace
/// (memory/trace.h) takes note of it.
class InComponent {
 public:
  explicit InComponent(Component component);
  ~InComponent();
  InComponent(const InComponent&) = delete;
  InComponent& operator=(const InComponent&) = delete;

 private:
  Place outer_;
};

/// In a block of the component's tower.
class InBlock {
 public:
  InBlock(Component component, int64_t block);
  ~InBlock();
  InBlock(const InBlock&) = delete;
  InBlock& operator=(const InBlock&) = delete;

 private:
  Place outer_;
};

/// Where the calling thread is: what guards say, or, in a backward pass, where the forward pass was when it made the
/// node that runs now. The latter is known while PlaceRecording is on.
Place current_place();

/// True while the autograd engine runs a node on the calling thread.
bool in_backward();

/// Remembers, from start to end, at which place each autograd node is made. One at a time in a process.
class PlaceRecording {
 public:
  PlaceRecording();
  ~PlaceRecording();
  PlaceRecording(const PlaceRecording&) = delete;
  PlaceRecording& operator=(const PlaceRecording&) = delete;

  /// Forgets the nodes so far; to be called between steps.
  static void forget();
};

}  // namespace vlmtrain::memory
