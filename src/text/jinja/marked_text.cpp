#include "text/jinja/marked_text.h"

#include <algorithm>

namespace vlmtrain::text::jinja {

void MarkedText::add(Run run) {
  // An empty run beside characters of its own origin says nothing.
  for (size_t i = runs_.size(); i-- > 0 && runs_[i].end == run.begin;) {
    if (runs_[i].origin == run.origin) {
      if (run.empty()) return;
      if (runs_[i].empty()) {
        runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      if (i + 1 == runs_.size()) {
        runs_[i].end = run.end;
        return;
      }
    }
    if (!runs_[i].empty()) break;
  }
  runs_.push_back(run);
}

void MarkedText::mark_generated() {
  generated_.clear();
  if (!empty()) generated_.push_back({0, size()});
}

MarkedText MarkedText::slice(size_t begin, size_t end) const {
  MarkedText part;
  part.append(*this, begin, end);
  return part;
}

void MarkedText::append(const MarkedText& other, size_t begin, size_t end) {
  const size_t shift = bytes_.size();
  bytes_.append(other.bytes_, begin, end - begin);
  const auto ends_before = [](const Run& run, size_t at) { return run.end < at; };
  for (auto run = std::lower_bound(other.runs_.begin(), other.runs_.end(), begin, ends_before);
       run != other.runs_.end() && run->begin <= end; ++run) {
    const size_t from = std::max(run->begin, begin);
    const size_t to = std::min(run->end, end);
    // Of several characters, none of a neighbour's origin.
    if (from == to && !run->empty() && begin < end) continue;
    add({shift + from - begin, shift + to - begin, run->origin});
  }
  for (const Generated& part : other.generated_) {
    const size_t from = std::max(part.begin, begin);
    const size_t to = std::min(part.end, end);
    if (from < to) generated_.push_back({shift + from - begin, shift + to - begin});
  }
}

void MarkedText::keep_place_of(const MarkedText& source) {
  if (!empty()) return;
  for (const Run& run : source.runs_) add({0, 0, run.origin});
}

}  // namespace vlmtrain::text::jinja
