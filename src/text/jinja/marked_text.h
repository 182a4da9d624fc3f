#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vlmtrain::text::jinja {

/// Bytes [begin, end) of a text that came from the message text `origin`. An empty run is the place of an empty text.
struct Run {
  size_t begin;
  size_t end;
  int origin;
  bool empty() const { return begin == end; }
  bool operator==(const Run&) const = default;
};

/// Bytes [begin, end) of a text that a `generation` block wrote.
struct Generated {
  size_t begin;
  size_t end;
  bool operator==(const Generated&) const = default;
};

/// A text (UTF-8) that knows where its characters come from. Runs are in order, do not overlap, and neighbours of one
/// origin are one run; what none covers was made by the template.
class MarkedText {
 public:
  MarkedText() = default;
  explicit MarkedText(std::string bytes) : bytes_(std::move(bytes)) {}
  /// All of it from `origin`, even if it is empty.
  MarkedText(std::string bytes, int origin) : bytes_(std::move(bytes)), runs_{{0, bytes_.size(), origin}} {}

  const std::string& bytes() const { return bytes_; }
  std::span<const Run> runs() const { return runs_; }
  /// What `generation` blocks wrote of it, in order, without overlap, none empty.
  std::span<const Generated> generated() const { return generated_; }
  /// From now on a `generation` block wrote all of it.
  void mark_generated();
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  /// Bytes [begin, end) of it. Of no bytes at all, the empty runs of the origins beside that place.
  MarkedText slice(size_t begin, size_t end) const;

  void append(std::string_view plain) { bytes_ += plain; }
  void append(const MarkedText& other) { append(other, 0, other.size()); }
  /// What `other.slice(begin, end)` is.
  void append(const MarkedText& other, size_t begin, size_t end);
  /// Where this is empty and `source`, of which it was made, was of origins: empty runs of them, so that an empty
  /// answer has a place.
  void keep_place_of(const MarkedText& source);

  /// Appends what `write(begin, end, out)` writes in place of `source`'s bytes [begin, end): it is called for parts of
  /// one origin each, which what it writes keeps.
  template <class Write>
  void append_written(const MarkedText& source, Write write) {
    size_t at = 0;
    for (const Run& run : source.runs_) {
      if (at < run.begin) write(at, run.begin, bytes_);
      const size_t begin = bytes_.size();
      if (!run.empty()) write(run.begin, run.end, bytes_);
      add({begin, bytes_.size(), run.origin});
      at = run.end;
    }
    if (at < source.size()) write(at, source.size(), bytes_);
  }

 private:
  void add(Run run);

  std::string bytes_;
  std::vector<Run> runs_;
  std::vector<Generated> generated_;
};

}  // namespace vlmtrain::text::jinja
