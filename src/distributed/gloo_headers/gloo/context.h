#pragma once

#include <chrono>

// What c10d's ProcessGroupGloo.hpp names of Gloo, which LibTorch contains and whose headers it does not come with. That
// class holds Gloo's objects behind shared pointers, so that their sizes do not matter here.

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace transport {
class UnboundBuffer;
}  // namespace transport

}  // namespace gloo
