#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vlmtrain::text::jinja {

/// Bytes [begin, end) of a text that came from the message text `origin`. An empty run is the place of an empty text.
struct OriginSpan {
  size_t begin;
  size_t end;
  int origin;
  bool empty() const { return begin == end; }
  bool operator==(const OriginSpan&) const = default;
};

/// Bytes [begin, end) of a text that a `generation` block wrote.
struct GeneratedSpan {
  size_t begin;
  size_t end;
  bool operator==(const GeneratedSpan&) const = default;
};

/// A text (UTF-8) that knows where its characters come from. Runs are in order, do not overlap, and neighbours of one
/// origin are one run; what none covers was made by the template.
class TrackedText {
 public:
  TrackedText() = default;
  explicit TrackedText(std::string bytes) : bytes_(std::move(bytes)) {}
  /// All of it from `origin`, even if it is empty.
  TrackedText(std::string bytes, int origin) : bytes_(std::move(bytes)), origin_spans_{{0, bytes_.size(), origin}} {}

  const std::string& bytes() const { return bytes_; }
  std::span<const OriginSpan> origin_spans() const { return origin_spans_; }
  /// What `generation` blocks wrote of it, in order, without overlap, none empty.
  std::span<const GeneratedSpan> generated() const { return generated_; }
  /// From now on a `generation` block wrote all of it.
  void mark_generated();
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  /// Bytes [begin, end) of it. Of no bytes at all, the empty runs of the origins beside that place.
  TrackedText slice(size_t begin, size_t end) const;

  void append(std::string_view plain) { bytes_ += plain; }
  void append(const TrackedText& other) { append(other, 0, other.size()); }
  /// What `other.slice(begin, end)` is.
  void append(const TrackedText& other, size_t begin, size_t end);
  /// Where this is empty and `source`, of which it was made, was of origins: empty runs of them, so that an empty
  /// answer has a place.
  void inherit_origins(const TrackedText& source);

  /// Appends what `write(begin, end, out)` writes in place of `source`'s bytes [begin, end): it is called for parts of
  /// one origin each, which what it writes keeps.
  template <class Transform>
  void append_transformed(const TrackedText& source, Transform transform) {
    size_t pos = 0;
    for (const OriginSpan& origin_span : source.origin_spans_) {
      if (pos < origin_span.begin) transform(pos, origin_span.begin, bytes_);
      const size_t begin = bytes_.size();
      if (!origin_span.empty()) transform(origin_span.begin, origin_span.end, bytes_);
      add_span({begin, bytes_.size(), origin_span.origin});
      pos = origin_span.end;
    }
    if (pos < source.size()) transform(pos, source.size(), bytes_);
  }

 private:
  void add_span(OriginSpan origin_span);

  std::string bytes_;
  std::vector<OriginSpan> origin_spans_;
  std::vector<GeneratedSpan> generated_;
};

}  // namespace vlmtrain::text::jinja
