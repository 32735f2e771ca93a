import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** Values as JSON, in ASCII whatever the locale is. */
final class Json {
    private Json() {}

    static String of(Object value) {
        if (value instanceof Map<?, ?> map) {
            List<String> members = new ArrayList<>();
            map.forEach((name, member) -> members.add(of(name) + ": " + of(member)));
            return "{" + String.join(", ", members) + "}";
        }
        if (value instanceof List<?> list) {
            return list.stream().map(Json::of).collect(Collectors.joining(", ", "[", "]"));
        }
        if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        return value.toString().chars().mapToObj(Json::escaped).collect(Collectors.joining("", "\"", "\""));
    }

    private static String escaped(int unit) {
        boolean simple = unit >= ' ' && unit < 127 && unit != '"' && unit != '\\';
        return simple ? String.valueOf((char) unit) : String.format("\\u%04x", unit);
    }
}
