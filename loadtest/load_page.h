// The picture of a load test: plots over batch size or rate, and one self-contained HTML page with
// them and all tables. Both are well-formed XML.
//
// Thread: plain functions. Ownership: values. Failure: none.
#pragma once

#include <string>

#include "loadtest/load_report.h"

namespace augur::loadtest {

// A whole SVG document.
std::string ReportSvg(const LoadReport& report);
std::string ReportHtml(const LoadReport& report);

}  // namespace augur::loadtest
