#pragma once

#include <chrono>

// Declarations of the parts of Gloo that c10d's ProcessGroupGloo.hpp uses. LibTorch contains Gloo
// but does not ship its headers. ProcessGroupGloo has only shared pointers to Gloo's objects, so
// their sizes do not matter here.

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace transport {
class UnboundBuffer;
}  // namespace transport

}  // namespace gloo
