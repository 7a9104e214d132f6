// The type of a command line's parser, for headers that only name it.
#pragma once

namespace CLI {
class App;
}
