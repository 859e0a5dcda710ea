import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogProperties;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;

/** Iceberg's REST catalog on a loopback port: LoopbackCatalog PORT NAME=VALUE... of the catalog behind. */
public final class LoopbackCatalog {
    public static void main(String[] arguments) throws Exception {
        Map<String, String> behind = new HashMap<>();
        behind.put(CatalogProperties.CATALOG_IMPL, JdbcCatalog.class.getName());
        for (int i = 1; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            behind.put(pair[0], pair[1]);
        }
        var catalog = CatalogUtil.buildIcebergCatalog("behind", behind, new Configuration());
        var handler = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
        var servlet = new RESTCatalogServlet(new RESTCatalogAdapter(catalog));
        handler.addServlet(new ServletHolder(servlet), "/*");
        var server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])));
        server.setHandler(handler);
        server.start();
        server.join();
    }
}
