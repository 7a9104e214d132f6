#include "page.hpp"

#include "page_parts.hpp"

namespace gpumem::bench {
namespace {

std::string replaced(std::string_view text, char search, std::string_view replacement) {
  std::string result_text;
  result_text.reserve(text.size());
  for (const char c : text) {
    if (c == search) {
      result_text.append(replacement);
    } else {
      result_text += c;
    }
  }
  return result_text;
}

/// Escapes `<`, which JSON has only in strings, so that the data cannot end the script element.
std::string in_script(std::string_view json) { return replaced(json, '<', "\\u003c"); }
std::string in_text(std::string_view text) { return replaced(replaced(text, '&', "&amp;"), '<', "&lt;"); }

/// Removes the last line of a minified file if it names a source map, which is not embedded.
std::string_view without_source_map(std::string_view text) {
  const std::size_t position = text.rfind("sourceMappingURL");
  return position == std::string_view::npos ? text : text.substr(0, text.rfind('\n', position));
}

/// Joins style, body, data and script of a report into one text.
std::string page_of(std::string_view body, std::string_view data_json, std::string_view script) {
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'; img-src data:\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>gpumem</title>\n<style>\n";
  const auto add = [&html](std::string_view text) { html.append(text).append("\n"); };
  add(without_source_map(parts::charts_style));
  add(parts::style);
  add("</style>\n</head>\n<body>");
  add(body);
  add("<footer class=\"soft\"><details><summary>Licence of the chart library in this file (dygraphs, "
      "MIT)</summary><pre>");
  add(in_text(parts::charts_licence));
  add("</pre></details></footer>\n<script type=\"application/json\" id=\"report-data\">");
  add(in_script(data_json));
  add("</script>\n<script>");
  add(without_source_map(parts::charts));
  add("</script>\n<script>");
  add(script);
  add("</script>\n</body>\n</html>");
  return html;
}

}  // namespace

status page_available() { return {}; }

std::string make_page(std::string_view data_json) { return page_of(parts::body, data_json, parts::script); }
std::string make_sweep_page(std::string_view data_json) {
  return page_of(parts::sweep_body, data_json, parts::sweep_script);
}

}  // namespace gpumem::bench
