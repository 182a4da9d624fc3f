#pragma once

#include <string>

namespace vlmtrain::text::jinja {

/// `now` ("2026-11-22" or "2026-11-22T10:30:00") as `format` has it, as Python's strftime of a time without a zone.
/// Throws Failure for what is no date, and for a format that writes more than some thousand bytes.
std::string format_date(const std::string& now, const std::string& format);

}  // namespace vlmtrain::text::jinja
