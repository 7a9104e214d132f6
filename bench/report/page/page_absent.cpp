/// Replaces page.cpp in builds without the chart library.
#include "page.hpp"

namespace gpumem::bench {

status page_available() {
  return {errc::unsupported,
          "--html: built without dygraphs, which draws the charts; install libjs-dygraphs and configure again"};
}

std::string make_page(std::string_view /*data_json*/) { return {}; }
std::string make_sweep_page(std::string_view /*data_json*/) { return {}; }

}  // namespace gpumem::bench
