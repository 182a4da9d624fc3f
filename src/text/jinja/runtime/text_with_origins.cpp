#include "text/jinja/runtime/text_with_origins.h"

#include <algorithm>

namespace vlmtrain::text::jinja {

void TextWithOrigins::add_origin_span(OriginSpan origin_span) {
  // Visits the spans that end where the new one begins: empty spans, then at most one span with
  // characters. An empty span next to another span of its own origin is redundant and is dropped.
  // Empty spans of other origins remain, so that their position is kept.
  for (size_t i = origin_spans_.size(); i-- > 0 && origin_spans_[i].end == origin_span.begin;) {
    if (origin_spans_[i].origin == origin_span.origin) {
      if (origin_span.empty()) return;
      if (origin_spans_[i].empty()) {
        origin_spans_.erase(origin_spans_.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      if (i + 1 == origin_spans_.size()) {  // no empty span of another origin between them
        origin_spans_[i].end = origin_span.end;
        return;
      }
    }
    if (!origin_spans_[i].empty()) break;
  }
  origin_spans_.push_back(origin_span);
}

void TextWithOrigins::mark_as_generated() {
  generated_spans_.clear();
  if (!empty()) generated_spans_.push_back({0, size()});
}

TextWithOrigins TextWithOrigins::slice(size_t begin, size_t end) const {
  TextWithOrigins result;
  result.append(*this, begin, end);
  return result;
}

void TextWithOrigins::append(const TextWithOrigins& other, size_t begin, size_t end) {
  const size_t offset = bytes_.size();
  bytes_.append(other.bytes_, begin, end - begin);
  const auto ends_before = [](const OriginSpan& origin_span, size_t pos) { return origin_span.end < pos; };
  for (auto origin_span = std::lower_bound(other.origin_spans_.begin(), other.origin_spans_.end(), begin, ends_before);
       origin_span != other.origin_spans_.end() && origin_span->begin <= end; ++origin_span) {
    const size_t span_begin = std::max(origin_span->begin, begin);
    const size_t span_end = std::min(origin_span->end, end);
    // A slice with characters gets no empty spans for the origins next to it.
    if (span_begin == span_end && !origin_span->empty() && begin < end) continue;
    add_origin_span({offset + span_begin - begin, offset + span_end - begin, origin_span->origin});
  }
  for (const GeneratedSpan& generated_span : other.generated_spans_) {
    const size_t span_begin = std::max(generated_span.begin, begin);
    const size_t span_end = std::min(generated_span.end, end);
    if (span_begin < span_end) generated_spans_.push_back({offset + span_begin - begin, offset + span_end - begin});
  }
}

void TextWithOrigins::inherit_origins(const TextWithOrigins& source) {
  if (!empty()) return;
  for (const OriginSpan& origin_span : source.origin_spans_) add_origin_span({0, 0, origin_span.origin});
}

}  // namespace vlmtrain::text::jinja
